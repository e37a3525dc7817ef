//! The command-line options of the compression scenario.

use std::path::PathBuf;

use clap::ValueEnum;

/// Options of the compression scenario.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The source tree that is checked out [default: one that is made up]
    #[arg(long, value_name = "DIR")]
    pub tree: Option<PathBuf>,
    /// An earlier state of it, which teaches the checkout's dictionary [default: the tree itself]
    #[arg(long, value_name = "DIR")]
    pub older: Option<PathBuf>,
    /// Pages, as HTML files
    #[arg(long, value_name = "DIR", default_value = PAGES)]
    pub pages: PathBuf,
    /// Parts to measure; left out: all
    #[arg(long, value_delimiter = ',', value_name = "PART,...")]
    pub only: Vec<Part>,
    /// Answers of the JSON family, as many again teach the dictionary
    #[arg(long, default_value_t = 1_500)]
    pub answers: usize,
    /// Rounds of the CPU's measurement
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
}

/// The parts of the scenario. Each has its own table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// A Subversion checkout, with and without Eyelet
    Checkout,
    /// The next version of bundles from npm
    Bundles,
    /// JSON answers, half of which teach a dictionary
    Answers,
    /// Pages, half of which teach a dictionary
    Pages,
    /// CPU a MB, beside nginx
    Cost,
}

/// The folder of Debian's apache2-doc.
const PAGES: &str = "/usr/share/doc/apache2-doc/manual/en";
