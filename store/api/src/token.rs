//! The token that nodes, agents and the CLI share, and the file that
//! holds it: one token a line. The first is the one to send; a node accepts all
//! of them, which is how one token is replaced by the next.

use std::fmt;

/// Shortest token, in bytes: shorter ones can be guessed.
pub const TOKEN_BYTES_MIN: usize = 16;

/// Longest token, in bytes.
pub const TOKEN_BYTES_MAX: usize = 2048;

/// Most tokens in one file: an old one, a new one, and room for a mistake.
pub const TOKENS_MAX: usize = 8;

/// Longest file of tokens that is read, in bytes.
pub const FILE_BYTES_MAX: u64 = 16 * 1024;

/// A bearer token (RFC 6750): letters, digits and `-._~+/=`. Never shown, not
/// even in debug output.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// The token as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The value of the `Authorization` header that carries it.
    pub fn authorization(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// The tokens of a file; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokens(Vec<Token>);

/// Why a file holds no tokens. Names the line, never the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// There is nothing in it.
    #[error("it holds no token; make one: `openssl rand -hex 32`")]
    Empty,
    /// There is too much in it.
    #[error("it is longer than {FILE_BYTES_MAX} bytes: it is not a file of tokens, one a line")]
    FileTooLong,
    /// There are too many.
    #[error(
        "it holds more than {TOKENS_MAX} tokens: keep the present one and the one that replaces it"
    )]
    TooMany,
    /// One has a length that no token has.
    #[error(
        "line {line}: a token has {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} characters, not {bytes}; make one: `openssl rand -hex 32`"
    )]
    Length {
        /// Line of the token, from 1.
        line: usize,
        /// Length of the token.
        bytes: usize,
    },
    /// One has a character that no token has.
    #[error(
        "line {line}: a token is letters, digits and -._~+/= without spaces; make one: `openssl rand -hex 32`"
    )]
    Character {
        /// Line of the token, from 1.
        line: usize,
    },
}

impl Tokens {
    /// Reads what lies in a file. Spaces around a token, empty lines and lines
    /// that begin with `#` do not count.
    pub fn parse(file: &[u8]) -> Result<Tokens, TokenError> {
        if file.len() as u64 > FILE_BYTES_MAX {
            return Err(TokenError::FileTooLong);
        }
        let mut tokens = Vec::new();
        for (index, line) in file.split(|byte| *byte == b'\n').enumerate() {
            let text = line.trim_ascii();
            if text.is_empty() || text.starts_with(b"#") {
                continue;
            }
            if tokens.len() == TOKENS_MAX {
                return Err(TokenError::TooMany);
            }
            tokens.push(parse_line(index + 1, text)?);
        }
        if tokens.is_empty() { Err(TokenError::Empty) } else { Ok(Tokens(tokens)) }
    }

    /// The one to send.
    pub fn first(&self) -> &Token {
        &self.0[0]
    }

    /// All that are accepted.
    pub fn iter(&self) -> impl Iterator<Item = &Token> {
        self.0.iter()
    }
}

fn parse_line(line: usize, text: &[u8]) -> Result<Token, TokenError> {
    if !(TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&text.len()) {
        return Err(TokenError::Length { line, bytes: text.len() });
    }
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(byte);
    let text = std::str::from_utf8(text).ok().filter(|text| text.as_bytes().iter().all(allowed));
    text.map(|text| Token(text.to_owned())).ok_or(TokenError::Character { line })
}

/// The token in the value of an `Authorization` header; none if it carries
/// something else.
pub fn bearer(authorization: &[u8]) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"bearer";
    let (scheme, rest) = authorization.split_at_checked(SCHEME.len())?;
    let token = rest.strip_prefix(b" ")?.trim_ascii();
    scheme.eq_ignore_ascii_case(SCHEME).then_some(token)
}

/// The warning for a file with these Unix permissions; none if it is well kept.
pub fn exposed(mode: u32) -> Option<&'static str> {
    const OTHERS_READ: u32 = 0o004;
    (mode & OTHERS_READ != 0)
        .then_some("everybody on this machine can read it; close it: `chmod 600`")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "0123456789abcdef";
    const TWO: &str = "abc-._~+/=ABCDEFG";

    #[test]
    fn tokens_stand_one_a_line_and_the_first_is_sent() {
        let file = format!("# since spring\n\n  {ONE}\t\r\n{TWO}\n");
        let tokens = Tokens::parse(file.as_bytes()).unwrap();
        assert_eq!(tokens.first().as_str(), ONE);
        assert_eq!(tokens.iter().map(Token::as_str).collect::<Vec<_>>(), [ONE, TWO]);
        assert_eq!(tokens.first().authorization(), format!("Bearer {ONE}"));
        assert_eq!(Tokens::parse(ONE.as_bytes()).unwrap().iter().count(), 1, "no newline");
    }

    #[test]
    fn what_is_no_token_is_refused_with_its_line() {
        let long = "x".repeat(TOKEN_BYTES_MAX + 1);
        let many = format!("{ONE}\n").repeat(TOKENS_MAX + 1);
        let huge = "#".repeat(FILE_BYTES_MAX as usize + 1);
        for (file, error) in [
            ("", TokenError::Empty),
            ("\n # nothing\n", TokenError::Empty),
            ("\nshort", TokenError::Length { line: 2, bytes: 5 }),
            (&long, TokenError::Length { line: 1, bytes: TOKEN_BYTES_MAX + 1 }),
            ("two words in one line", TokenError::Character { line: 1 }),
            ("ünïcödé-ünïcödé-ünïcödé", TokenError::Character { line: 1 }),
            (&many, TokenError::TooMany),
            (&huge, TokenError::FileTooLong),
        ] {
            assert_eq!(Tokens::parse(file.as_bytes()).unwrap_err(), error, "{file:?}");
        }
        assert!(Tokens::parse(&[0xff; TOKEN_BYTES_MIN]).is_err());
    }

    #[test]
    fn a_token_is_never_shown() {
        let tokens = Tokens::parse(ONE.as_bytes()).unwrap();
        assert!(!format!("{tokens:?}").contains(ONE));
    }

    #[test]
    fn the_header_is_read_as_clients_write_it() {
        for (header, token) in [
            ("Bearer abc", Some("abc")),
            ("bearer   abc ", Some("abc")),
            ("Bearer ", Some("")),
            ("Bearer", None),
            ("Bearerabc", None),
            ("Basic abc", None),
            ("", None),
        ] {
            assert_eq!(bearer(header.as_bytes()), token.map(str::as_bytes), "{header:?}");
        }
    }

    #[test]
    fn a_file_that_everybody_reads_is_exposed() {
        assert!(exposed(0o100_644).is_some());
        assert_eq!(exposed(0o100_640), None);
        assert_eq!(exposed(0o100_600), None);
    }
}
