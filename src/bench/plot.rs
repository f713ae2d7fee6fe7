//! Lines over named places, as SVG. Pure: the drawing is a text. Invariant: what is drawn are the numbers that the report has.

use plotters::coord::ranged1d::{IntoSegmentedCoord, SegmentValue};
use plotters::prelude::{
    ChartBuilder, Circle, Color, IntoDrawingArea, LineSeries, PathElement, RGBColor, SVGBackend, SeriesLabelPosition, WHITE,
};

use super::report::Cell;

const SIZE: (u32, u32) = (960, 540);

/// Told apart also by those who see no red or green (Okabe and Ito).
const COLOURS: [RGBColor; 4] = [RGBColor(0, 114, 178), RGBColor(213, 94, 0), RGBColor(0, 158, 115), RGBColor(204, 121, 167)];

/// A drawing.
#[derive(Clone, Debug)]
pub struct Chart {
    pub title: String,
    /// What the numbers are, with their unit.
    pub unit: &'static str,
    /// The places from left to right.
    pub places: Vec<String>,
    pub lines: Vec<Line>,
}

/// One line: a number, or what was not measured, for each place.
#[derive(Clone, Debug)]
pub struct Line {
    pub name: String,
    pub cells: Vec<Cell>,
}

/// Why there is no drawing.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw: {0}")]
pub struct PlotError(String);

impl Chart {
    /// The text of an SVG file.
    ///
    /// # Errors
    /// What the library has against it.
    pub fn to_svg(&self) -> Result<String, PlotError> {
        let mut svg = String::new();
        self.draw(&mut svg).map_err(|error| PlotError(error.to_string()))?;
        Ok(svg)
    }

    fn draw(&self, svg: &mut String) -> Result<(), Box<dyn std::error::Error + '_>> {
        let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        let failed = |error: &dyn std::fmt::Display| -> Box<dyn std::error::Error> { error.to_string().into() };
        area.fill(&WHITE).map_err(|error| failed(&error))?;
        let last = self.places.len().saturating_sub(1);
        let highest = self.lines.iter().flat_map(|line| &line.cells).filter_map(Cell::value).fold(0.0, f64::max);
        // A line at the upper edge would be half a line, and one without height none.
        let top = if highest > 0.0 { highest * 1.1 } else { 1.0 };
        let mut chart = ChartBuilder::on(&area)
            .caption(&self.title, ("sans-serif", 20))
            .margin(16)
            .x_label_area_size(32)
            .y_label_area_size(72)
            .build_cartesian_2d((0..last).into_segmented(), 0.0..top)
            .map_err(|error| failed(&error))?;
        let place = |at: &SegmentValue<usize>| match at {
            SegmentValue::CenterOf(at) | SegmentValue::Exact(at) => self.places.get(*at).cloned().unwrap_or_default(),
            SegmentValue::Last => String::new(),
        };
        let mut mesh = chart.configure_mesh();
        mesh.disable_x_mesh()
            .x_labels(self.places.len())
            .x_label_formatter(&place)
            .y_desc(self.unit)
            .draw()
            .map_err(|error| failed(&error))?;
        for (line, colour) in self.lines.iter().zip(COLOURS.iter().cycle()) {
            let points: Vec<_> =
                line.cells.iter().enumerate().filter_map(|(at, cell)| Some((SegmentValue::CenterOf(at), cell.value()?))).collect();
            let drawn = chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2))).map_err(|error| failed(&error))?;
            drawn.label(&line.name).legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
            chart.draw_series(points.into_iter().map(|point| Circle::new(point, 4, colour.filled()))).map_err(|error| failed(&error))?;
        }
        let mut labels = chart.configure_series_labels();
        labels.position(SeriesLabelPosition::UpperLeft).background_style(WHITE.mix(0.8)).draw().map_err(|error| failed(&error))?;
        area.present().map_err(|error| failed(&error))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(cells: Vec<Cell>) -> Chart {
        let places = (0..cells.len()).map(|n| format!("{}x100", 1 << n)).collect();
        let line = |name: &str| Line { name: name.into(), cells: cells.clone() };
        Chart { title: "s3://b/<k>".into(), unit: "Gbit/s", places, lines: vec![line("peak"), line("end to end")] }
    }

    #[test]
    fn every_place_line_and_number_is_drawn() {
        let svg = chart(vec![Cell::number(10.0, 3), Cell::number(20.0, 3), Cell::Unknown, Cell::number(15.0, 3)]).to_svg().unwrap();
        for text in ["1x100", "2x100", "4x100", "8x100", "peak", "end to end", "Gbit/s", "s3://b/&lt;k&gt;"] {
            assert!(svg.contains(text), "{text} is missing in\n{svg}");
        }
        assert_eq!((svg.matches("<circle").count(), svg.matches("</svg>").count()), (6, 1));
    }

    #[test]
    fn one_place_and_no_numbers_are_drawings_too() {
        for cells in [vec![Cell::number(1.0, 3)], vec![Cell::number(0.0, 3)], vec![Cell::Unknown], Vec::new()] {
            assert!(chart(cells.clone()).to_svg().unwrap().ends_with("</svg>\n"), "{cells:?}");
        }
    }
}
