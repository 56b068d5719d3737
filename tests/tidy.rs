//! The rules of the house that no compiler knows, held over the text of this repository.
//!
//! A rule is a function from the files to what breaks it: where, what, and the remedy. Each has one test that holds
//! it over the repository and one that shows on a bad snippet that it can fail.

#![cfg(test)]

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

#[path = "tidy/source.rs"]
mod source;

use source::{File, paths};

/// The layers, each a folder of `src`, and which others it may import.
const LAYERS: [(&str, &[&str]); 7] = [
    ("adapter", &["machine", "observe", "runtime"]),
    ("machine", &[]),
    ("observe", &["machine"]),
    ("operation", &["machine", "observe", "runtime"]),
    ("runtime", &["machine", "observe"]),
    ("sim", &["machine"]),
    ("testing", &["machine", "observe", "runtime"]),
];

/// The layers that know no clock, no lock, no task and no crate but `rand`.
const PURE: [&str; 2] = ["machine", "sim"];

const MOST_LINES: usize = 500;

/// Names the places that these rules refuse, so it is not held to them; `Cargo.lock` is written by cargo.
const NOT_OUR_WORDS: [&str; 2] = ["Cargo.lock", "tests/tidy.rs"];

type Rule = fn(&[File]) -> Vec<Finding>;

/// One place that breaks a rule.
struct Finding {
    path: String,
    line: usize,
    what: String,
    remedy: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}\n    {}", self.path, self.line, self.what, self.remedy)
    }
}

#[test]
fn imports_look_downwards() {
    hold(upward_imports);
}

#[test]
fn an_import_that_looks_upwards_is_found() {
    let found = |path, text| lines(upward_imports, &[(path, text)]);
    assert_eq!(found("src/machine/a.rs", "use super::Gate;\nuse crate::runtime::Link;"), [2]);
    assert_eq!(found("src/observe/mod.rs", "use crate::machine::Gate;\nfn f() { crate::adapter::g(); }"), [2]);
    assert_eq!(found("src/sim/fleet.rs", "use crate::{\n    machine::Gate,\n    runtime::Link,\n};"), [1]);
    assert_eq!(found("src/sim/fleet.rs", "use crate::observe::Cause;"), [1]);
    assert_eq!(found("src/machine/gate/pace.rs", "use super::super::Gate;\nuse super::super::super::Link;"), [2]);
    assert_eq!(found("src/machine/gate/mod.rs", "use super::super::Link;"), [1]);
    assert_eq!(found("src/runtime/link.rs", "use crate::Supervisor;\nuse crate::runtime::Supervisor;"), [1]);
    assert_eq!(found("src/util/mod.rs", "//! Odds and ends."), [1]);
    assert_eq!(found("src/util.rs", "//! Odds and ends."), [1]);
    let tests = "use crate::machine::Gate;\n#[cfg(test)]\nmod tests {\n    use crate::runtime::Link;\n}";
    assert_eq!(found("src/sim/fleet.rs", tests), [0; 0]);
}

#[test]
fn the_pure_layers_use_no_crate_but_rand() {
    hold(foreign_crates);
}

#[test]
fn a_foreign_crate_in_a_pure_layer_is_found() {
    let manifest = "[dependencies]\narc-swap = \"1\"\nrand = \"1\"\n[target.'cfg(unix)'.dependencies]\nlibc = \"1\"\n[dev-dependencies]\nbackoff = \"1\"\n[features]\nsim = []\n";
    let found = |path, text| lines(foreign_crates, &[("Cargo.toml", manifest), (path, text)]);
    let text = "use rand::Rng;\nuse arc_swap::ArcSwap;\n// libc::time\nfn f() { libc::time(); }\nuse libc as c;\nuse backoff::Step;";
    assert_eq!(found("src/machine/a.rs", text), [2, 4, 5]);
    assert_eq!(found("src/sim/a.rs", text), [2, 4, 5]);
    assert_eq!(found("src/runtime/a.rs", text), [0; 0]);
}

#[test]
fn the_pure_layers_know_no_clock_and_no_lock() {
    hold(clocks_and_locks);
}

#[test]
fn a_clock_or_a_lock_in_a_pure_layer_is_found() {
    let found = |text| lines(clocks_and_locks, &[("src/machine/a.rs", text)]);
    assert_eq!(found("use std::time::Instant;\nlet now = Instant::now();"), [2]);
    assert_eq!(found("let age = then.elapsed();\nlet elapsed = now - then;"), [1]);
    assert_eq!(found("use std::time::{Duration, SystemTime};"), [1]);
    assert_eq!(found("use std::sync::{Arc,\n    Mutex};\nstruct A(std::sync::atomic::AtomicU64);"), [2, 3]);
    assert_eq!(found("static A: RwLock<u8> = b;\nstatic B: OnceLock<u8> = c;\nstatic C: LazyLock<u8> = d;"), [1, 2, 3]);
    assert_eq!(found("async fn f() {}\nfn g() { std::thread::yield_now(); }\nf().await;"), [1, 2, 3]);
    assert_eq!(found("/// No Mutex, no Instant::now().\nconst A: &str = \"Mutex\"; /* Mutex */"), [0; 0]);
    assert_eq!(lines(clocks_and_locks, &[("src/sim/a.rs", "use std::sync::Mutex;")]), [1]);
    assert_eq!(lines(clocks_and_locks, &[("src/runtime/a.rs", "use std::sync::Mutex;")]), [0; 0]);
}

#[test]
fn the_machine_cannot_panic_by_unwrapping() {
    hold(unwraps_in_the_machine);
}

#[test]
fn an_unwrap_in_the_machine_is_found() {
    let text = "let a = b.unwrap();\nlet c = d\n    .expect(\"e\");\nlet f = g.unwrap_or(1);\n#[expect(clippy::x)]\n";
    assert_eq!(lines(unwraps_in_the_machine, &[("src/machine/a.rs", text)]), [1, 3]);
    assert_eq!(lines(unwraps_in_the_machine, &[("src/machine/tests.rs", text)]), [0; 0]);
    assert_eq!(lines(unwraps_in_the_machine, &[("src/runtime/a.rs", text)]), [0; 0]);
}

#[test]
fn source_files_are_short() {
    hold(long_files);
}

#[test]
fn a_long_source_file_is_found() {
    let (short, long) = ("\n".repeat(MOST_LINES), "\n".repeat(MOST_LINES + 1));
    assert_eq!(lines(long_files, &[("src/a.rs", &short), ("src/b.rs", &long), ("tests/c.rs", &long)]), [501]);
}

#[test]
fn the_architecture_has_a_row_for_each_source_file() {
    hold(architecture_rows);
}

#[test]
fn a_missing_or_stale_row_is_found() {
    let doc = "| file | what |\n|---|---|\n| `src/a.rs` | a |\n| `src/gone.rs` | b |\n| `src/a.rs` | a |\n| `b` | `src/c.rs` |";
    let files = [("docs/ARCHITECTURE.md", doc), ("src/a.rs", ""), ("src/c.rs", "")];
    assert_eq!(lines(architecture_rows, &files), [4, 5, 1]);
    assert_eq!(lines(architecture_rows, &[("src/a.rs", "")]), [1]);
}

#[test]
fn the_page_of_reliability_names_tests_that_exist() {
    hold(tests_of_reliability);
}

#[test]
fn the_name_of_a_test_that_does_not_exist_is_found() {
    let doc =
        "| a | `one::it_holds`, `two::it_holds` |\n| b | `two::it_is_gone` |\n| c | `models::it_holds` |\n`std::x`";
    let test = "#[test]\nfn it_holds() {}";
    let files = [
        ("docs/RELIABILITY.md", doc),
        ("tests/one.rs", test),
        ("tests/two/main.rs", ""),
        ("tests/two/a.rs", test),
        ("src/runtime/models/a.rs", test),
    ];
    assert_eq!(lines(tests_of_reliability, &files), [2]);
    assert_eq!(lines(tests_of_reliability, &files[..3]), [1, 2, 3]);
}

#[test]
fn no_registry_is_named() {
    hold(registries);
}

#[test]
fn the_name_of_a_registry_is_found() {
    let text = "a crate\nsee https://crates.io/crates/tokio\nFROM ghcr.io/a/b\ncrates in io\n";
    assert_eq!(lines(registries, &[("README.md", text)]), [2, 3]);
    assert_eq!(lines(registries, &[("Cargo.lock", text)]), [0; 0]);
}

#[test]
fn no_path_of_a_developers_machine_is_named() {
    hold(machine_paths);
}

#[test]
fn a_path_of_a_developers_machine_is_found() {
    let text = "cd /work/x\n\"/root/x\"\nfile:///home/a/b\nC:\\Users\\a\nGET /a/work/b\nhttp://host/home/\n./home/x\n";
    assert_eq!(lines(machine_paths, &[("a.sh", text)]), [1, 2, 3, 4]);
}

#[test]
fn tests_are_named_for_what_they_show() {
    hold(numbered_tests);
}

#[test]
fn a_test_named_after_a_number_is_found() {
    let text = "#[test]\nfn y13_hint() {}\n#[tokio::test(start_paused = true)]\nasync fn hint_w4() {}\n\
                #[test]\n#[should_panic]\nfn case_7() {}\nfn w4() {}\n#[test]\nfn i32_max_and_tls12_of_200_clients() {}\n\
                #[cfg(test)]\nmod tests {\n    #[test]\n    fn issue2() {}\n}\n";
    assert_eq!(lines(numbered_tests, &[("src/a.rs", text)]), [2, 4, 7, 14]);
}

/// Fails with every place of the repository that breaks the rule.
fn hold(rule: Rule) {
    static FILES: LazyLock<Vec<File>> = LazyLock::new(repository);
    let files = &*FILES;
    assert!(files.iter().any(|file| file.path == "src/lib.rs"), "the sources were not found");
    let findings = rule(files);
    let report: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{} places break a rule of the house:\n\n{}\n", findings.len(), report.join("\n"));
}

/// The lines of a snippet at which a rule finds something.
fn lines(rule: Rule, files: &[(&str, &str)]) -> Vec<usize> {
    let files: Vec<File> = files.iter().map(|(path, text)| File::new(path, text)).collect();
    rule(&files).iter().map(|finding| finding.line).collect()
}

/// Every text file, but those that git ignores.
fn repository() -> Vec<File> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let ignored = fs::read_to_string(root.join(".gitignore")).expect("a .gitignore");
    let ignored: Vec<&str> = ignored.lines().map(|line| line.trim_matches('/')).chain([".git"]).collect();
    let mut files = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the repository") {
            let entry = entry.expect("an entry of the repository");
            let (path, kind) = (entry.path(), entry.file_type().expect("a file type"));
            let name = path.strip_prefix(root).expect("a path below the root").to_string_lossy().replace('\\', "/");
            if ignored.contains(&name.as_str()) {
                continue;
            }
            if kind.is_dir() {
                // Cargo marks its target folders so, whatever they are called.
                if !path.join("CACHEDIR.TAG").exists() {
                    folders.push(path);
                }
            } else if let Ok(text) = fs::read_to_string(&path) {
                files.push(File::new(&name, &text));
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

fn upward_imports(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.is_source() && file.path != "src/lib.rs") {
        let module = file.module();
        let Some((layer, below)) = LAYERS.iter().find(|(layer, _)| file.is_in(layer)) else {
            let what = "this file is in no layer".to_owned();
            findings.push(file.finding(1, what, "put it into the folder of its layer: see LAYERS in tests/tidy.rs"));
            continue;
        };
        for (line, path) in file.product_paths() {
            let segments: Vec<&str> = path.split("::").collect();
            let ups = segments.iter().take_while(|segment| **segment == "super").count();
            let target = if ups >= module.len() {
                segments.get(ups)
            } else if segments[0] == "crate" {
                segments.get(1)
            } else {
                continue;
            };
            if let Some(target) = target.filter(|target| *target != layer && !below.contains(target)) {
                let what = format!("`{path}` looks out of {layer} at `{target}`, which is not below it");
                let remedy = "import from `crate::<a lower layer>::…`, one `use` each, or move the code down";
                findings.push(file.finding(line, what, remedy));
            }
        }
    }
    findings
}

fn foreign_crates(files: &[File]) -> Vec<Finding> {
    let manifest = files.iter().find(|file| file.path == "Cargo.toml").map_or("", |file| &file.text);
    let mut dependencies = BTreeSet::new();
    let mut listed = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            // What tests stand beside may be called as one of our modules.
            listed = line.trim_end().ends_with("dependencies]") && !line.contains("dev-");
        } else if let Some((name, _)) = line.split_once(['=', '.']).filter(|_| listed) {
            dependencies.insert(name.trim().replace('-', "_"));
        }
    }
    dependencies.remove("rand");
    pure(files, "keep it to std and rand: what else is needed comes in as an argument", |line| {
        let mut found = paths(line).filter(|path| {
            let first = path.split("::").next().unwrap_or_default();
            (path.contains("::") || line.contains(&format!("use {path}"))) && dependencies.contains(first)
        });
        found.next().map(|path| format!("`{path}` is of another crate"))
    })
}

fn clocks_and_locks(files: &[File]) -> Vec<Finding> {
    const WORDS: [&str; 10] = [
        "Condvar",
        "LazyLock",
        "Mutex",
        "OnceLock",
        "RwLock",
        "SystemTime",
        "async",
        "await",
        "thread",
        "thread_local",
    ];
    pure(files, "time, chance and news come in as arguments; what is shared is the runtime's to lock", |line| {
        let word = |segment: &&str| WORDS.contains(segment) || segment.starts_with("Atomic");
        let mut named = paths(line).flat_map(|path| path.split("::"));
        let asked = ["Instant::now", ".elapsed("].into_iter().find(|call| line.contains(call));
        named.find(word).or(asked).map(|found| format!("`{found}` in a pure layer"))
    })
}

fn unwraps_in_the_machine(files: &[File]) -> Vec<Finding> {
    let remedy = "make the case impossible by type, or give it a value: the machine is total";
    in_lines(files.iter().filter(|file| file.is_in("machine")), remedy, |line| {
        let found = [".unwrap()", ".expect("].into_iter().find(|call| line.contains(call));
        found.map(|call| format!("`{call}` in the machine"))
    })
}

/// What `check` says about the lines of the pure layers.
fn pure(files: &[File], remedy: &'static str, check: impl Fn(&str) -> Option<String>) -> Vec<Finding> {
    in_lines(files.iter().filter(|file| PURE.iter().any(|layer| file.is_in(layer))), remedy, check)
}

/// What `check` says about lines of code: no comment, no text, no test.
fn in_lines<'a>(
    files: impl Iterator<Item = &'a File>,
    remedy: &'static str,
    check: impl Fn(&str) -> Option<String>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        let found = file.product.lines().zip(1..).filter_map(|(line, number)| Some((number, check(line)?)));
        findings.extend(found.map(|(number, what)| file.finding(number, what, remedy)));
    }
    findings
}

fn long_files(files: &[File]) -> Vec<Finding> {
    let lines = |file: &File| file.text.lines().count();
    let long = files.iter().filter(|file| file.is_source() && lines(file) > MOST_LINES);
    let what = |count| format!("{count} lines, where {MOST_LINES} are the most");
    long.map(|file| file.finding(lines(file), what(lines(file)), "split it by noun, one file each")).collect()
}

fn architecture_rows(files: &[File]) -> Vec<Finding> {
    const INDEX: &str = "docs/ARCHITECTURE.md";
    let mut findings = Vec::new();
    let mut rows = BTreeSet::new();
    if let Some(index) = files.iter().find(|file| file.path == INDEX) {
        for (line, number) in index.text.lines().zip(1..) {
            let row = line.strip_prefix("| `").and_then(|row| row.split_once('`')).map(|(row, _)| row);
            let Some(row) = row.filter(|row| row.starts_with("src/")) else { continue };
            if !files.iter().any(|file| file.path == row) {
                findings.push(index.finding(number, format!("`{row}` does not exist"), "remove or rename the row"));
            } else if !rows.insert(row) {
                findings.push(index.finding(number, format!("`{row}` has two rows"), "keep one"));
            }
        }
    }
    let missing = files.iter().filter(|file| file.is_source() && !rows.contains(file.path.as_str()));
    findings.extend(missing.map(|file| {
        file.finding(1, format!("{INDEX} does not list this file"), "add a row to it: | `src/…` | what it is for |")
    }));
    findings
}

/// In the rows of its tables: what stands in quotes and is called like a test of a binary, or of a module of models.
fn tests_of_reliability(files: &[File]) -> Vec<Finding> {
    const REMEDY: &str = "name a test that holds the promise, as `binary::test`";
    let Some(page) = files.iter().find(|file| file.path == "docs/RELIABILITY.md") else { return Vec::new() };
    let exists = |binary: &str, test: &str| {
        let (head, folder) = (format!("tests/{binary}.rs"), format!("/{binary}/"));
        let mut homes = files.iter().filter(|file| file.path == head || file.path.contains(&folder));
        homes.any(|file| file.code.contains(&format!("fn {test}(")))
    };
    let mut findings = Vec::new();
    for (line, number) in page.text.lines().zip(1..).filter(|(line, _)| line.starts_with('|')) {
        let named = line.split('`').skip(1).step_by(2).filter_map(|quoted| quoted.split_once("::"));
        let gone = named.filter(|(binary, test)| !exists(binary, test));
        findings.extend(
            gone.map(|(binary, test)| page.finding(number, format!("there is no test `{binary}::{test}`"), REMEDY)),
        );
    }
    findings
}

fn registries(files: &[File]) -> Vec<Finding> {
    const HOSTS: [&str; 8] =
        ["crates.io", "docker.io", "gcr.io", "ghcr.io", "npmjs.", "proxy.golang.org", "pypi.", "quay.io"];
    in_words(files, "name the package, not where it is fetched from", |line| {
        HOSTS.into_iter().find(|host| line.contains(host)).map(|host| format!("`{host}` is the host of a registry"))
    })
}

fn machine_paths(files: &[File]) -> Vec<Finding> {
    const ROOTS: [&str; 5] = ["/Users/", "/home/", "/root/", "/work/", ":\\Users\\"];
    let begins = |line: &str, at: usize| {
        let before = &line[..at];
        before.ends_with("file://") || !before.ends_with(|c: char| c.is_alphanumeric() || "._-/}".contains(c))
    };
    in_words(files, "write it relative to the repository, or make it an argument", |line| {
        let mut found = ROOTS
            .into_iter()
            .filter(|root| line.match_indices(root).any(|(at, _)| root.starts_with(':') || begins(line, at)));
        found.next().map(|root| format!("a path below `{root}` exists on one machine only"))
    })
}

/// What `check` says about lines of text, in any file that we write.
fn in_words(files: &[File], remedy: &'static str, check: impl Fn(&str) -> Option<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| !NOT_OUR_WORDS.contains(&file.path.as_str())) {
        let found = file.text.lines().zip(1..).filter_map(|(line, number)| Some((number, check(line)?)));
        findings.extend(found.map(|(number, what)| file.finding(number, what, remedy)));
    }
    findings
}

fn numbered_tests(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
        let mut is_test = false;
        for (line, number) in file.code.lines().zip(1..) {
            is_test |= line.trim_start().starts_with("#[") && paths(line).any(|path| path.ends_with("test"));
            let Some((_, rest)) = line.split_once("fn ") else { continue };
            let name = paths(rest).next().unwrap_or_default();
            if is_test && name.split('_').any(is_label) {
                let what = format!("the test `{name}` is named after a number");
                findings.push(file.finding(number, what, "name it for the behaviour that it shows"));
            }
            is_test = false;
        }
    }
    findings
}

/// Whether a word of a test's name labels a case (`w4`), an invariant (`i7`) or an issue.
fn is_label(word: &str) -> bool {
    const NO_LABELS: [&str; 9] = ["i8", "i16", "i32", "i64", "i128", "p50", "p90", "p95", "p99"];
    let letters = word.trim_end_matches(|c: char| c.is_ascii_digit());
    let numbered = letters.len() < word.len();
    word == "case"
        || word == "issue"
        || numbered && !NO_LABELS.contains(&word) && ["a", "case", "i", "issue", "p", "w", "y"].contains(&letters)
}
