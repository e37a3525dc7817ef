//! The file of `--svg`. It is opened before the measurement, which takes a minute, and written
//! after it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file that can be written. Until it is, an older picture in it stays.
#[derive(Debug)]
pub struct PictureFile {
    path: PathBuf,
    file: File,
    /// Removed on drop: this process made it, and no picture is in it.
    is_to_be_removed: bool,
}

impl PictureFile {
    /// Opens the file, or makes it. The error names it.
    pub fn open(path: &Path) -> Result<Self, String> {
        Self::try_open(path).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn try_open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.write(true);
        let made = options.clone().create_new(true).open(path);
        let is_to_be_removed = made.is_ok();
        let file = match made {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                options.create(true).truncate(false).open(path)?
            }
            made => made?,
        };
        Ok(Self { path: path.to_owned(), file, is_to_be_removed })
    }

    /// Writes the picture in place of what is there. Returns the file's path.
    pub fn write(mut self, picture: &str) -> io::Result<String> {
        // A pipe or a terminal has no length.
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        self.file.write_all(picture.as_bytes())?;
        self.is_to_be_removed = false;
        Ok(self.path.display().to_string())
    }
}

impl Drop for PictureFile {
    fn drop(&mut self) {
        if self.is_to_be_removed {
            // It is empty or cut: nobody misses it, and nothing follows from it if it stays.
            let _ = fs::remove_file(&self.path);
        }
    }
}
