//! What a bench says: facts and a table, as text for people, as JSON, as CSV. Pure. Invariant: a number is rounded once, when it comes in,
//! so that all three show the same.

use std::fmt::Write;

use serde_json::{Map, Value, json};

/// What something is called: by people, and by programs, where the unit is a part of the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    pub shown: &'static str,
    pub key: &'static str,
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    Text(String),
    Count(u64),
    /// Rounded, with so many decimals.
    Number(f64, usize),
    /// What was not measured, or cannot be known here.
    Unknown,
}

/// Facts that hold for all of it, then a table, which may have no rows.
#[derive(Clone, Debug)]
pub struct Report {
    bench: &'static str,
    facts: Vec<(Name, Cell)>,
    columns: Vec<Name>,
    rows: Vec<Vec<Cell>>,
}

impl Cell {
    /// A measured number, of which so many decimals mean something.
    pub fn number(value: f64, decimals: usize) -> Self {
        if !value.is_finite() {
            return Self::Unknown;
        }
        let rounded = format!("{value:.decimals$}").parse().expect("a number was just written");
        Self::Number(rounded, decimals)
    }

    /// The number that it shows.
    pub fn value(&self) -> Option<f64> {
        match self {
            Self::Count(n) => Some(*n as f64),
            Self::Number(value, _) => Some(*value),
            Self::Text(_) | Self::Unknown => None,
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Count(n) => n.to_string(),
            Self::Number(value, decimals) => format!("{value:.decimals$}"),
            Self::Unknown => "-".into(),
        }
    }

    fn json(&self) -> Value {
        match self {
            Self::Text(text) => json!(text),
            Self::Count(n) => json!(n),
            Self::Number(value, _) => json!(value),
            Self::Unknown => Value::Null,
        }
    }

    fn csv(&self) -> String {
        if *self == Self::Unknown { String::new() } else { self.text() }
    }
}

impl From<u64> for Cell {
    fn from(n: u64) -> Self {
        Self::Count(n)
    }
}

impl From<usize> for Cell {
    fn from(n: usize) -> Self {
        Self::Count(n as u64)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl<T: Into<Self>> From<Option<T>> for Cell {
    fn from(known: Option<T>) -> Self {
        known.map_or(Self::Unknown, Into::into)
    }
}

impl Report {
    /// Of the bench of that name, with nothing in it.
    pub fn new(bench: &'static str) -> Self {
        Self { bench, facts: Vec::new(), columns: Vec::new(), rows: Vec::new() }
    }

    /// And this is so.
    pub fn fact(mut self, name: Name, cell: impl Into<Cell>) -> Self {
        self.facts.push((name, cell.into()));
        self
    }

    /// With a table of these columns.
    pub fn columns(mut self, columns: impl IntoIterator<Item = Name>) -> Self {
        self.columns.extend(columns);
        self
    }

    /// One more row of it.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        let cells: Vec<Cell> = cells.into_iter().collect();
        assert_eq!(cells.len(), self.columns.len(), "a row has a cell for each column");
        self.rows.push(cells);
    }

    /// For people: facts that are known a line each, then the table.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let known = || self.facts.iter().filter(|(_, cell)| *cell != Cell::Unknown);
        let wide = known().map(|(name, _)| name.shown.chars().count()).max().unwrap_or(0);
        for (name, cell) in known() {
            let _ = writeln!(text, "{:<wide$}  {}", name.shown, cell.text());
        }
        if self.columns.is_empty() {
            return text;
        }
        if !text.is_empty() {
            text.push('\n');
        }
        let heads = self.columns.iter().map(|name| name.shown.to_owned()).collect();
        let lines: Vec<Vec<String>> =
            std::iter::once(heads).chain(self.rows.iter().map(|row| row.iter().map(Cell::text).collect())).collect();
        let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        for line in &lines {
            let cells: Vec<String> = line.iter().zip(&widths).enumerate().map(|(i, (cell, wide))| self.padded(i, cell, *wide)).collect();
            let _ = writeln!(text, "{}", cells.join(" | ").trim_end());
        }
        text
    }

    /// Words at the left, numbers at the right.
    fn padded(&self, column: usize, cell: &str, wide: usize) -> String {
        let is_words = self.rows.iter().any(|row| matches!(row[column], Cell::Text(_)));
        if is_words { format!("{cell:<wide$}") } else { format!("{cell:>wide$}") }
    }

    /// One object; the table is an array of objects, `rows`.
    pub fn to_json(&self) -> Value {
        let object =
            |cells: &mut dyn Iterator<Item = (&'static str, Value)>| cells.map(|(key, cell)| (key.to_owned(), cell)).collect::<Map<_, _>>();
        let mut all = object(&mut self.facts.iter().map(|(name, cell)| (name.key, cell.json())));
        all.insert("bench".into(), json!(self.bench));
        if !self.columns.is_empty() {
            let row = |row: &Vec<Cell>| object(&mut self.columns.iter().zip(row).map(|(name, cell)| (name.key, cell.json())));
            let rows: Vec<Value> = self.rows.iter().map(row).map(Value::Object).collect();
            all.insert("rows".into(), rows.into());
        }
        Value::Object(all)
    }

    /// A line for each row of the table, which begins with the facts; a heading of keys.
    pub fn to_csv(&self) -> String {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let facts: Vec<String> = self.facts.iter().map(|(_, cell)| cell.csv()).collect();
        let heading = self.facts.iter().map(|(name, _)| name.key).chain(self.columns.iter().map(|name| name.key));
        let mut write = |record: Vec<String>| writer.write_record(record).expect("memory takes what is written to it");
        write(heading.map(str::to_owned).collect());
        if self.columns.is_empty() {
            write(facts);
        } else {
            self.rows.iter().for_each(|row| write(facts.iter().cloned().chain(row.iter().map(Cell::csv)).collect()));
        }
        let bytes = writer.into_inner().expect("memory takes what is written to it");
        String::from_utf8(bytes).expect("it was made of texts")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: Name = Name { shown: "source", key: "source" };
    const BYTES: Name = Name { shown: "bytes", key: "bytes" };
    const SHARE: Name = Name { shown: "share of the ceiling %", key: "ceiling_share_percent" };
    const RUNS: Name = Name { shown: "runs", key: "runs" };
    const PEAK: Name = Name { shown: "peak Gbit/s", key: "peak_gbit_per_second" };

    fn sweep() -> Report {
        let report = Report::new("read").fact(SOURCE, "s3://b/k, \"odd\"").fact(BYTES, 107_374_182_400_u64).fact(SHARE, None::<u64>);
        let mut report = report.columns([RUNS, PEAK]);
        report.row([128_u64.into(), Cell::number(99.999_96, 3)]);
        report.row([1024_u64.into(), Cell::number(2.0 / 3.0, 3)]);
        report.row([7_u64.into(), Cell::number(f64::NAN, 3)]);
        report
    }

    #[test]
    fn text_json_and_csv_show_the_same_numbers() {
        let report = sweep();
        let (text, json, csv) = (report.to_text(), report.to_json(), report.to_csv());
        let rows: Vec<Vec<String>> = text
            .lines()
            .skip_while(|line| !line.contains(" | "))
            .skip(1)
            .map(|line| line.split('|').map(|cell| cell.trim().to_owned()).collect())
            .collect();
        let mut reader = csv::Reader::from_reader(csv.as_bytes());
        let heading: Vec<String> = reader.headers().unwrap().iter().map(str::to_owned).collect();
        assert_eq!(heading, ["source", "bytes", "ceiling_share_percent", "runs", "peak_gbit_per_second"]);
        let records: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
        assert_eq!((rows.len(), records.len(), json["rows"].as_array().unwrap().len()), (3, 3, 3));
        for (at, (row, record)) in rows.iter().zip(&records).enumerate() {
            let said = &json["rows"][at];
            for (column, key) in ["runs", "peak_gbit_per_second"].into_iter().enumerate() {
                let number = row[column].parse::<f64>().ok();
                assert_eq!((said[key].as_f64(), record[3 + column].parse::<f64>().ok()), (number, number), "{at} {key}");
            }
            assert_eq!((&record[0], &record[1], &record[2]), ("s3://b/k, \"odd\"", "107374182400", ""));
        }
        assert_eq!((json["bytes"].as_u64(), &json["ceiling_share_percent"]), (Some(107_374_182_400), &Value::Null));
        assert_eq!(rows[0], ["128", "100.000"]);
        assert_eq!(rows[2], ["7", "-"]);
    }

    #[test]
    fn facts_alone_are_a_line_each_and_one_record() {
        let report = Report::new("read").fact(BYTES, 7_u64).fact(SHARE, Cell::number(93.06, 1));
        assert_eq!(report.to_text(), "bytes                   7\nshare of the ceiling %  93.1\n");
        assert_eq!(report.to_json(), json!({"bench": "read", "bytes": 7, "ceiling_share_percent": 93.1}));
        assert_eq!(report.to_csv(), "bytes,ceiling_share_percent\n7,93.1\n");
    }

    #[test]
    fn what_is_not_known_is_left_out_of_the_facts_for_people() {
        let text = sweep().to_text();
        assert!(!text.contains("ceiling"), "{text}");
        assert!(text.contains("\nruns | peak Gbit/s\n 128 |     100.000\n"), "{text}");
    }
}
