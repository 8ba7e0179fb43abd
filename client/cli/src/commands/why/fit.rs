//! Fits a report into a given number of lines.

/// A line with lines that belong to it, the most important first.
#[derive(Debug, Default)]
pub(super) struct Section {
    pub(super) head: String,
    pub(super) rows: Vec<Row>,
}

/// One line of many.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) text: String,
    /// Its host, to count those that are left out.
    pub(super) host: Option<String>,
    /// How many processes it is about.
    pub(super) processes: u64,
}

/// All that fits into this many lines, two at least: heads go before rows, and
/// rows are shared out evenly. What is left out is counted. Indented by two.
pub(super) fn fit(sections: &[Section], lines_max: usize) -> Vec<String> {
    let heads = match sections.len() <= lines_max {
        true => sections.len(),
        false => lines_max.saturating_sub(1),
    };
    let mut left = lines_max - heads - usize::from(heads < sections.len());
    // One line in turn to each section that needs more.
    let mut given = vec![0; heads];
    while left > 0 {
        let before = left;
        for (given, section) in given.iter_mut().zip(sections) {
            if left > 0 && *given < section.rows.len() {
                *given += 1;
                left -= 1;
            }
        }
        if left == before {
            break;
        }
    }
    let mut lines = Vec::new();
    for (section, given) in sections.iter().zip(given) {
        lines.push(section.head.clone());
        // The last line that it has says what is left out.
        let shown = if given < section.rows.len() { given.saturating_sub(1) } else { given };
        let (rows, rest) = section.rows.split_at(shown);
        lines.extend(rows.iter().map(|row| format!("  {}", row.text)));
        if given > shown {
            lines.push(format!("  … {}", left_out(rest, rows)));
        }
    }
    if heads < sections.len() {
        let more = sections.len() - heads;
        lines.push(format!("… and {more} more that wait; -o json shows all"));
    }
    lines
}

/// `and 37 more hosts (296 processes)`.
fn left_out(rest: &[Row], shown: &[Row]) -> String {
    let known: std::collections::BTreeSet<&String> =
        shown.iter().filter_map(|row| row.host.as_ref()).collect();
    let hosts: std::collections::BTreeSet<&String> = rest
        .iter()
        .filter_map(|row| row.host.as_ref())
        .filter(|host| !known.contains(host))
        .collect();
    let processes = rest.iter().map(|row| row.processes).fold(0, u64::saturating_add);
    let of = if processes == 1 { "process" } else { "processes" };
    match hosts.len() {
        0 => format!("and {processes} more {of}"),
        1 => format!("and 1 more host ({processes} {of})"),
        many => format!("and {many} more hosts ({processes} {of})"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn section(head: &str, rows: usize) -> Section {
        let row = |n| Row { text: format!("{head}{n}"), host: Some(format!("h{n}")), processes: 8 };
        Section { head: head.to_owned(), rows: (0..rows).map(row).collect() }
    }

    #[test]
    fn rows_are_shared_out_and_the_rest_is_counted() {
        let sections = [section("a", 1), section("b", 40)];
        let lines = fit(&sections, 6);
        assert_eq!(
            lines,
            ["a", "  a0", "b", "  b0", "  b1", "  … and 38 more hosts (304 processes)"]
        );
        assert_eq!(fit(&sections, 100).len(), 43);
        assert_eq!(fit(&[section("a", 2)], 2), ["a", "  … and 2 more hosts (16 processes)"]);
    }

    #[test]
    fn more_sections_than_lines_are_counted() {
        let sections: Vec<Section> = (0..9).map(|n| section(&n.to_string(), 3)).collect();
        let lines = fit(&sections, 4);
        assert_eq!(lines, ["0", "1", "2", "… and 6 more that wait; -o json shows all"]);
    }

    proptest! {
        #[test]
        fn it_always_fits_and_uses_what_there_is(
            rows in proptest::collection::vec(0_usize..30, 0..30), lines_max in 2_usize..30,
        ) {
            let sections: Vec<Section> = rows.iter().map(|rows| section("x", *rows)).collect();
            let lines = fit(&sections, lines_max).len();
            let all = sections.len() + rows.iter().sum::<usize>();
            prop_assert_eq!(lines, all.min(lines_max));
        }
    }
}
