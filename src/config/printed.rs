//! All values as a configuration file, with where each came from. Invariant: the text can be used as a file, and holds no secret.

use super::gather::Values;
use super::table::OPTIONS;
use super::value::Value;

impl Values {
    /// Every option as a line of a TOML file, with the origin as a comment. What is not set is a
    /// comment altogether, so that the text can be used as a file.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        let mut group = "";
        for spec in OPTIONS {
            if spec.group != group {
                group = spec.group;
                text += &format!("\n# {group}\n");
            }
            text += &match self.get(spec.name) {
                // A mask is not the value: as a line it would be taken for the secret.
                Some((value @ Value::Secret(_), origin)) => format!("# {} = {}  # {origin}\n", spec.name, value.to_toml()),
                Some((value, origin)) => format!("{} = {}  # {origin}\n", spec.name, value.to_toml()),
                None => format!("# {} =  # not set\n", spec.name),
            };
        }
        text.trim_start().to_owned()
    }
}
