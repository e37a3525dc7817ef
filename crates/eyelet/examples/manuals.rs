//! Writes the manual pages and the shell completions, made of the command line's definition. An
//! example, so that the program does not carry their generators. `packaging/deb.sh` runs it:
//!
//! `cargo run --example manuals -- FOLDER` writes `man1/*.1`, and a file for each shell.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use clap_complete::Shell;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args_os().nth(1).ok_or("usage: manuals FOLDER")?;
    let folder = PathBuf::from(folder);
    let pages = folder.join("man1");
    fs::create_dir_all(&pages)?;
    clap_mangen::generate_to(eyelet::command::cli::definition(), &pages)?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        clap_complete::generate_to(
            shell,
            &mut eyelet::command::cli::definition(),
            "eyelet",
            &folder,
        )?;
    }
    Ok(())
}
