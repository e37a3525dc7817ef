//! `eyelet passwd`: makes a line for the users of a proxy.

use std::io::{self, Read, Write};
use std::process::ExitCode;

use clap::Args;
use eyelet_config::users::{User, check_name, new_token};
use zeroize::Zeroizing;

const EXAMPLES: &str = "\
Examples:
  eyelet passwd alice >>users.txt             prints a new token, once
  pass show proxy | eyelet passwd --stdin bob >>users.txt

The file is for `users` of a listener of kind \"connect\"; rules name its users by `proxy_user`. To
change a token, replace the line, and reload. Whoever can read the file cannot read the tokens, but
can try short ones.

Exit status: 0, 1 if no token can be made or read, 2 if NAME cannot be a name.";

/// Arguments of `eyelet passwd`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct PasswdArgs {
    /// The user
    #[arg(value_parser = name)]
    pub name: String,
    /// Take the token from a line of standard input, instead of a new one
    #[arg(long)]
    pub stdin: bool,
}

/// Prints the line on standard output, and a new token on standard error.
pub fn passwd(args: &PasswdArgs) -> ExitCode {
    match line(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("eyelet: {why}");
            ExitCode::FAILURE
        }
    }
}

fn line(args: &PasswdArgs) -> Result<(), String> {
    let token = match args.stdin {
        true => read_token()?,
        false => new_token().ok_or("the system has no random numbers")?,
    };
    let user = User::new(&args.name, token.as_bytes()).ok_or("the system has no random numbers")?;
    writeln!(io::stdout(), "{user}").map_err(|error| error.to_string())?;
    if !args.stdin {
        eprintln!("The token of {}, which is shown only now: {}", args.name, *token);
    } else if token.len() < TOKEN_BYTES_MIN {
        eprintln!(
            "eyelet: warning: the token has fewer than {TOKEN_BYTES_MIN} bytes: whoever reads the \
             file of users can find it by trying"
        );
    }
    Ok(())
}

/// The first line of the standard input.
fn read_token() -> Result<Zeroizing<String>, String> {
    let mut text = Zeroizing::new(String::with_capacity(TOKEN_BYTES_MAX + 2));
    let mut input = io::stdin().lock().take(TOKEN_BYTES_MAX as u64 + 2);
    input.read_to_string(&mut text).map_err(|error| format!("standard input: {error}"))?;
    let line = text.lines().next().unwrap_or_default();
    match line.len() {
        0 => Err("there is no token on standard input".into()),
        len if len > TOKEN_BYTES_MAX => Err(format!("a token has at most {TOKEN_BYTES_MAX} bytes")),
        _ => Ok(Zeroizing::new(line.to_owned())),
    }
}

fn name(text: &str) -> Result<String, &'static str> {
    check_name(text).map(|()| text.to_owned())
}

/// Most bytes of a token (RFC 1929 section 2).
const TOKEN_BYTES_MAX: usize = 255;

/// Fewest bytes of a token that nobody finds by trying: 80 bits as hexadecimal digits.
const TOKEN_BYTES_MIN: usize = 20;
