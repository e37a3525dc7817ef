//! The access log as people use it: its recipes on real lines, its text form, and the lines of
//! connections that go on.

use std::io::Write;
use std::process::Command;

use serde_json::Value;

use crate::support::{
    Edge, End, Folder, Hello, SOON, Upstream, ending, expect, need, output, until,
};

/// All lines of a log that is a file, once there are so many.
fn lines(folder: &Folder, count: usize) -> Vec<String> {
    let read = || std::fs::read_to_string(folder.path().join("access.log")).unwrap_or_default();
    until("the lines of the file", || {
        let lines: Vec<String> = read().lines().map(str::to_owned).collect();
        (lines.len() >= count).then_some(lines)
    })
}

/// Sends hellos with these names, and reads each answer to its end.
fn refuse_all(edge: &Edge, names: &[&str]) {
    for name in names {
        let mut client = edge.connect();
        client.write_all(&Hello::named(name).bytes()).unwrap();
        assert_eq!(ending(&mut client, SOON).1, End::Fin);
    }
}

/// A rule for one name, and one for the rest.
const REST: &str = "[[rule]]\nsni = \"none.test\"\naction = \"refuse\"\n\
                    [[rule]]\nname = \"rest\"\naction = \"refuse\"\n";

/// Each command of the manual runs on lines of a real edge.
#[test]
fn the_recipes_of_the_manual_work() {
    if !need("jq") {
        return;
    }
    let folder = Folder::new();
    let rules = format!("{REST}[log]\naccess = \"access.log\"\n");
    let edge = Edge::start(&folder, &rules);
    refuse_all(&edge, &["a.test", "b.test", "a.test"]);
    lines(&folder, 3);
    let manual = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/access-log.md");
    let manual = std::fs::read_to_string(manual).unwrap();
    let block = manual.split("\n## Recipes\n").nth(1).unwrap().split("```").nth(1).unwrap();
    // A recipe goes on where the next line is indented.
    let block = block.replace("\n    ", " ");
    let recipes: Vec<&str> = block.lines().filter(|line| line.starts_with("jq ")).collect();
    assert!(recipes.len() >= 7, "{block}");
    let said = |recipe: &str| {
        let said = output(Command::new("sh").args(["-ec", recipe]).current_dir(folder.path()));
        assert!(said.status.success(), "{recipe}: {}", said.text);
        said.text
    };
    recipes.iter().for_each(|recipe| _ = said(recipe));
    let is_of_connections =
        |recipe: &&&str| !["select(.http)", "== \"request\""].iter().any(|of| recipe.contains(of));
    let counts: Vec<_> = recipes.iter().filter(is_of_connections).collect();
    let once: Vec<String> = counts.iter().map(|recipe| said(recipe)).collect();
    // A connection may have other lines too. It is counted once.
    let ends = std::fs::read_to_string(folder.path().join("access.log")).unwrap();
    let end = "\"event\":\"end\"";
    assert!(ends.contains(end), "{ends}");
    let other = |event: &str| ends.replace(end, &format!("\"event\":\"{event}\""));
    folder.write("access.log", ends.clone() + &other("decided") + &other("request"));
    for (recipe, once) in counts.iter().zip(once) {
        assert_eq!(said(recipe), once, "{recipe}");
    }
    let by_name = said(recipes[0]);
    let first = by_name.lines().next().unwrap_or_default().trim();
    assert_eq!(first, "2 no rule for this name\ta.test\t127.0.0.1", "{by_name}");
    let hour = recipes.iter().find(|recipe| recipe.contains("3600")).unwrap();
    assert_eq!(said(hour).trim(), "3 refused", "{hour}");
    // Lines of another day are not of the last hour.
    let old = std::fs::read_to_string(folder.path().join("access.log")).unwrap();
    let old = old.replace("{\"time\":\"20", "{\"time\":\"19");
    folder.write("access.log", old);
    assert_eq!(said(hour).trim(), "", "{hour}");
}

#[test]
fn the_text_form_is_for_people() {
    let folder = Folder::new();
    let rules = format!("{REST}[log]\naccess = \"access.log\"\nformat = \"text\"\n");
    let edge = Edge::start(&folder, &rules);
    refuse_all(&edge, &["a.test"]);
    let line = lines(&folder, 1).remove(0);
    let (time, rest) = line.split_once(' ').unwrap();
    assert!(time.len() == 24 && time.ends_with('Z'), "{line}");
    assert!(rest.starts_with("refused    127.0.0.1:"), "{line}");
    assert!(rest.contains(" a.test by \"rest\": no rule for this name ("), "{line}");
    assert!(!line.contains('\x1b'), "a file has no colours: {line}");
}

/// A connection may live for a day: who asks for it has a line at its begin.
#[test]
fn a_decision_has_its_line_when_it_is_made() {
    let origin = Upstream::by_hand();
    let shadow =
        "[[rule]]\nname = \"trial\"\nshadow = true\nsni = \"*.lie.test\"\naction = \"refuse\"\n";
    for (whole, name, is_early) in
        [("decided = true\n", "a.test", true), ("", "a.test", false), ("", "a.lie.test", true)]
    {
        let folder = Folder::new();
        let by_name = "[[rule]]\nsni = \"none.test\"\naction = \"refuse\"\n";
        let rules = format!(
            "{shadow}{by_name}[[rule]]\naction = \"splice\"\nupstream = \"{}\"\n\
             [log]\naccess = \"access.log\"\n{whole}",
            origin.address
        );
        let edge = Edge::start(&folder, &rules);
        let mut client = edge.connect();
        let hello = Hello::named(name).bytes();
        client.write_all(&hello).unwrap();
        let mut server = origin.take();
        expect(&mut server, &hello);
        if is_early {
            let line: Value = serde_json::from_str(&lines(&folder, 1)[0]).unwrap();
            assert_eq!((&line["event"], &line["reason"]), (&"decided".into(), &Value::Null));
            assert_eq!((&line["outcome"], &line["sni"]), (&"spliced".into(), &name.into()));
            assert_eq!(line["client_ip"], "127.0.0.1", "{line}");
            assert_eq!(line["shadow"].is_null(), name == "a.test", "{line}");
        }
        drop(client);
        // Else both ends could come before the edge looks, and it could see the server's first.
        assert_eq!(ending(&mut server, SOON), (vec![], End::Fin));
        drop(server);
        let all = lines(&folder, 1 + usize::from(is_early));
        let last: Value = serde_json::from_str(all.last().unwrap()).unwrap();
        assert_eq!((&last["event"], &last["reason"]), (&"end".into(), &"client closed".into()));
        let ids: Vec<Value> = all.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(ids.iter().all(|line: &Value| line["id"] == last["id"]), "{all:?}");
        assert_eq!(all.len(), 1 + usize::from(is_early), "{all:?}");
    }
}
