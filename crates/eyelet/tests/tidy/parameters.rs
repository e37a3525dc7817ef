//! The number of parameters of each function. A tuple counts as its parts, because it is how values
//! that have no type yet get past a limit.

use std::collections::BTreeMap;

use super::source::{File, files, tokens, without_tests};

/// Parameters of a function, without its receiver. More of them travel together, and are a type.
const PARAMETERS_MAX: usize = 4;

/// Crates that have functions with more of them, and at most how many. Numbers are only lowered.
const CRATES_LEFT: &[(&str, usize)] = &[
    ("acme", 6),
    ("admin", 1),
    ("config", 7),
    ("demo", 1),
    ("edge", 5),
    ("engine", 3),
    ("eyelet", 4),
    ("fleet", 1),
    ("h2", 5),
    ("probe", 5),
    ("process", 3),
    ("quic", 1),
    ("record", 4),
    ("relay", 11),
    ("resolve", 7),
    ("resting", 1),
    ("sandbox", 3),
    ("sys", 1),
    ("telemetry", 1),
    ("tls", 7),
    ("workers", 1),
];

/// A function in the code of a file.
struct Signature<'a> {
    line: usize,
    name: &'a str,
    parameters: usize,
}

/// All functions of a file but those of its test modules.
fn signatures(code: &str) -> Vec<Signature<'_>> {
    let tokens = without_tests(&tokens(code));
    let words: Vec<&str> = tokens.iter().map(|(_, word)| *word).collect();
    let mut found = Vec::new();
    for (at, pair) in words.windows(2).enumerate() {
        let ["fn", name] = *pair else { continue };
        let mut open = at + 2;
        if words.get(open) == Some(&"<") {
            open = closing(&words, open) + 1;
        }
        // The type of a function has no name.
        if name == "(" || words.get(open) != Some(&"(") {
            continue;
        }
        let all = parts(&words[open + 1..closing(&words, open)]);
        let is_receiver = |part: &&[&str]| {
            let name = part.iter().position(|word| *word == ":").unwrap_or(part.len());
            part[..name].last() == Some(&"self")
        };
        let parameters =
            all.iter().filter(|part| !is_receiver(part)).map(|part| values(part)).sum();
        found.push(Signature { line: tokens[at].0, name, parameters });
    }
    found
}

/// The values of one parameter: those of its pattern, or of its type if that has more.
fn values(parameter: &[&str]) -> usize {
    let colon = (0..parameter.len()).find(|at| {
        let is_path = |at: usize| parameter.get(at) == Some(&":");
        parameter[*at] == ":"
            && !is_path(at + 1)
            && (*at == 0 || !is_path(at - 1))
            && depth(&parameter[..*at]) == 0
    });
    let (pattern, of_type) = parameter.split_at(colon.unwrap_or(0));
    width(pattern).max(width(of_type.strip_prefix(&[":"]).unwrap_or(of_type)))
}

/// The parts of a tuple, and of the tuples in it. Everything else is one.
fn width(words: &[&str]) -> usize {
    let words = match words {
        ["&", "'", _, "mut", rest @ ..]
        | ["&", "'", _, rest @ ..]
        | ["&", "mut", rest @ ..]
        | ["&" | "mut", rest @ ..] => rest,
        words => words,
    };
    match words {
        ["(", within @ .., ")"] => parts(within).into_iter().map(width).sum(),
        _ => 1,
    }
}

/// Parts between the commas that no bracket encloses.
fn parts<'a, 'b>(words: &'a [&'b str]) -> Vec<&'a [&'b str]> {
    let (mut found, mut begin) = (Vec::new(), 0);
    for at in 0..=words.len() {
        let is_end = words.get(at).is_none_or(|word| *word == ",");
        if is_end && depth(&words[begin..at]) == 0 {
            found.push(&words[begin..at]);
            begin = at + 1;
        }
    }
    found.retain(|part| !part.is_empty());
    found
}

/// The brackets that are open behind these words. The `>` of an arrow is none.
fn depth(words: &[&str]) -> usize {
    let mut depth = 0_usize;
    for (at, word) in words.iter().enumerate() {
        match *word {
            "(" | "[" | "{" | "<" => depth += 1,
            ">" if at > 0 && words[at - 1] == "-" => {}
            ")" | "]" | "}" | ">" => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    depth
}

/// The position of the bracket that closes the one at `open`.
fn closing(words: &[&str], open: usize) -> usize {
    let end = (open + 1..words.len()).find(|end| depth(&words[open..=*end]) == 0);
    end.unwrap_or(words.len() - 1)
}

#[test]
fn functions_have_few_parameters() {
    let (mut findings, mut wide, mut functions) = (Vec::new(), BTreeMap::new(), 0);
    let counts = |file: &&File| file.is_rust() && file.within("crates") && !file.is_test();
    for file in files().iter().filter(counts) {
        let of = file.path.split('/').nth(1).unwrap();
        for Signature { line, name, parameters } in signatures(&file.code) {
            functions += 1;
            if parameters > PARAMETERS_MAX {
                let at = format!("{}:{line}: fn {name}: {parameters} parameters", file.path);
                wide.entry(of).or_insert_with(Vec::new).push(at);
            }
        }
    }
    assert!(functions > 5_000, "only {functions} functions are found");
    for (of, wide) in &mut wide {
        let most = CRATES_LEFT.iter().find(|(left, _)| left == of).map_or(0, |(_, most)| *most);
        if wide.len() > most {
            findings.push(format!("{of}: {} functions of {most} with too many", wide.len()));
            findings.append(wide);
        }
    }
    let done = CRATES_LEFT.iter().filter(|(of, _)| !wide.contains_key(of));
    findings.extend(done.map(|(of, _)| format!("CRATES_LEFT: {of} has none any more")));
    super::report(&findings);
}

#[test]
fn parameters_are_counted_by_their_parts() {
    let text = "
        fn none() {}
        fn receiver(&mut self, a: u8, b: &'a mut (u8, u8), (c, d): Pair) -> (u8, u8) {}
        pub async fn generic<F: Fn(u8, u8) -> Vec<u8>, T>(self: Box<Self>, f: F, t: [T; 2],) {}
        const fn nested((a, (b, c)): (u8, (u8, u8)), d: fn(u8, u8) -> u8, e: a::B<C, D>) {}
        fn destructured(Pair { a, b }: Pair, c: u8) {}
        #[cfg(test)]
        mod tests { fn hidden(a: u8, b: u8, c: u8, d: u8, e: u8) {} }
    ";
    let file = File::of("crates/a/src/lib.rs", text);
    let found: Vec<_> =
        signatures(&file.code).into_iter().map(|found| (found.name, found.parameters)).collect();
    let expected =
        [("none", 0), ("receiver", 5), ("generic", 2), ("nested", 5), ("destructured", 2)];
    assert_eq!(found, expected);
}
