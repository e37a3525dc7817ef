//! Draws memory over connections as SVG, one line a server. It must be readable on light and on
//! dark pages, and need only a browser.

/// Draws curves of (connections, bytes).
pub fn draw(title: &str, curves: &[(String, Vec<(f64, f64)>)]) -> String {
    let points = || curves.iter().flat_map(|(_, curve)| curve);
    let conns_max = points().map(|point| point.0).fold(1.0, f64::max);
    let mib_max = nice_ceiling(points().map(|point| point.1 / MIB).fold(0.1, f64::max));
    let x = |conns: f64| LEFT + conns / conns_max * WIDTH;
    let y = |mib: f64| TOP + HEIGHT - mib / mib_max * HEIGHT;
    let mut svg = head(title);
    for k in 0..=GRID {
        let mib = mib_max * f64::from(k) / f64::from(GRID);
        let conns = conns_max * f64::from(k) / f64::from(GRID);
        let (at_y, at_x) = (y(mib), x(conns));
        svg += &format!(
            "<path class=\"grid\" d=\"M{LEFT} {at_y:.1}h{WIDTH}\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{mib:.1}</text>\n\
             <text x=\"{at_x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{conns:.0}</text>\n",
            LEFT - 8.0,
            at_y + 4.0,
            TOP + HEIGHT + 20.0
        );
    }
    let ends = curves.iter().map(|(_, curve)| y(curve.last().map_or(0.0, |end| end.1 / MIB)));
    let labels = spread(&ends.collect::<Vec<_>>());
    for ((k, (name, curve)), label_y) in curves.iter().enumerate().zip(labels) {
        let colour = COLOURS[k % COLOURS.len()];
        let line: Vec<String> =
            curve.iter().map(|(n, bytes)| format!("{:.1},{:.1}", x(*n), y(bytes / MIB))).collect();
        let (n, bytes) = curve.last().copied().unwrap_or_default();
        let each = bytes / n.max(1.0);
        svg += &format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2.5\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" style=\"fill:{colour}\">{name} {}</text>\n",
            line.join(" "),
            LEFT + WIDTH + 8.0,
            label_y + 4.0,
            readable(each)
        );
    }
    svg + "</svg>\n"
}

fn head(title: &str) -> String {
    let (width, height) = (LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <style>text{{fill:#444}}.grid{{stroke:#888;stroke-opacity:.35}}\
         @media (prefers-color-scheme:dark){{text{{fill:#ccc}}}}</style>\n\
         <title>{title}</title>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"15\">{title}</text>\n\
         <text x=\"{LEFT}\" y=\"38\">MiB of anonymous memory over connections held; \
         bytes a connection beside the name</text>\n"
    )
}

/// The least value not below `value` of 1, 2, 4, 5 or 8 times a power of ten.
fn nice_ceiling(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 4.0, 5.0, 8.0, 10.0];
    steps.into_iter().map(|step| step * power).find(|step| *step >= value).unwrap_or(value)
}

/// Moves labels up, from the lowest, so that none covers another.
fn spread(ends: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..ends.len()).collect();
    order.sort_by(|a, b| ends[*b].total_cmp(&ends[*a]));
    let mut placed = ends.to_vec();
    let mut floor = f64::INFINITY;
    for k in order {
        placed[k] = ends[k].min(floor);
        floor = placed[k] - LABEL_HEIGHT;
    }
    placed
}

fn readable(bytes: f64) -> String {
    match bytes {
        few if few < 1024.0 => format!("{few:.0} B"),
        many => format!("{:.1} KiB", many / 1024.0),
    }
}

const MIB: f64 = 1024.0 * 1024.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 60.0;
const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 300.0;
const RIGHT: f64 = 170.0;
const BOTTOM: f64 = 40.0;
const GRID: u32 = 4;
const LABEL_HEIGHT: f64 = 15.0;
/// Colours of medium lightness, to be visible on white and on black.
const COLOURS: [&str; 8] =
    ["#d9480f", "#1c7ed6", "#2b8a3e", "#ae3ec9", "#c08a00", "#0c8599", "#e64980", "#748091"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_and_a_label_for_each_server() {
        let curve = |each: f64| (0..5).map(|k| (f64::from(k), f64::from(k) * each)).collect();
        let svg = draw("t", &[("small".into(), curve(300.0)), ("large".into(), curve(15000.0))]);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains(">small 300 B<") && svg.contains(">large 14.6 KiB<"), "{svg}");
    }

    #[test]
    fn labels_keep_apart() {
        assert_eq!(spread(&[100.0, 98.0, 10.0]), [100.0, 85.0, 10.0]);
        assert_eq!(nice_ceiling(0.13), 0.2);
        assert_eq!(nice_ceiling(29.0), 40.0);
    }
}
