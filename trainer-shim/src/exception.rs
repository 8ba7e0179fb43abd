//! The exception of a program, in a few words: its type and text.

use holdfast_api::{AgainstWhy, Blob};

/// Most bytes of an exception that are sent to the others.
pub const EXCEPTION_BYTES_MAX: usize = 200;

/// Ends a text that was cut.
const CUT: char = '…';

/// An exception as it is sent to the others: one line, at most
/// [`EXCEPTION_BYTES_MAX`] bytes.
pub fn in_short(text: &str) -> String {
    let mut short = String::new();
    // One word more than fits shows that something is left out.
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|w| !w.is_empty())
    {
        if !short.is_empty() {
            short.push(' ');
        }
        short.push_str(word);
        if short.len() > EXCEPTION_BYTES_MAX {
            let is_behind =
                |(at, c): &(usize, char)| at + c.len_utf8() + CUT.len_utf8() > EXCEPTION_BYTES_MAX;
            let end = short.char_indices().find(is_behind).map_or(short.len(), |(at, _)| at);
            short.truncate(end);
            short.push(CUT);
            break;
        }
    }
    short
}

/// Payload of a process at the exit of its atomic block.
pub(crate) fn exit_payload(ended: &Result<(), String>) -> Blob {
    let payload = match ended {
        Ok(()) => "succeeded".to_owned(),
        Err(words) => match in_short(words).as_str() {
            "" => "failed".to_owned(),
            words => format!("failed {words}"),
        },
    };
    payload.into()
}

/// Why an atomic block failed by one of its processes.
pub fn block_failure(why: &AgainstWhy) -> String {
    let said = match why {
        AgainstWhy::Said(payload) => String::from_utf8_lossy(payload.as_bytes()),
        AgainstWhy::Ended(cause) => return cause.to_string(),
        AgainstWhy::NotThere => return "alive, but went to an advance instead".to_owned(),
        AgainstWhy::Withdrawn => return "stopped waiting at the exit".to_owned(),
        AgainstWhy::Deadline => return "its exit was void at a deadline".to_owned(),
        AgainstWhy::EnteredAgain => return "entered again before its exit".to_owned(),
    };
    match said.split_once(' ') {
        Some(("failed", words)) => format!("failed by {}", in_short(words)),
        _ if said == "failed" => "failed, and did not say why".to_owned(),
        _ => format!("said {}", in_short(&said)),
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::Cause;

    use super::*;

    #[test]
    fn an_exception_is_one_bounded_line() {
        assert_eq!(in_short("OSError: disk\n  full\x1b[2J"), "OSError: disk full [2J");
        assert_eq!(in_short(" \n "), "");
        let fits = "x".repeat(EXCEPTION_BYTES_MAX);
        assert_eq!(in_short(&fits), fits);
        for long in ["x".repeat(1_000), "é".repeat(1_000), "many words ".repeat(1_000)] {
            let short = in_short(&long);
            assert!(short.len() <= EXCEPTION_BYTES_MAX && short.ends_with(CUT), "{short}");
            assert!(short.len() > EXCEPTION_BYTES_MAX - 4, "{short}");
        }
    }

    #[test]
    fn what_made_a_block_fail_is_told_in_words() {
        let failed = |words: &str| exit_payload(&Err(words.to_owned()));
        let raised = Cause::Raised { error: "OSError: disk full".to_owned() };
        for (why, words) in [
            (AgainstWhy::Said(failed("OSError: disk full")), "failed by OSError: disk full"),
            (AgainstWhy::Said(failed("")), "failed, and did not say why"),
            (AgainstWhy::Said(exit_payload(&Ok(()))), "said succeeded"),
            (AgainstWhy::Said(b"\xff"[..].into()), "said \u{fffd}"),
            (AgainstWhy::Ended(Cause::Signaled { signal: 9 }), "killed by signal 9"),
            (AgainstWhy::Ended(Cause::Left), "left"),
            (AgainstWhy::Ended(raised), "left by an exception: OSError: disk full"),
            (AgainstWhy::NotThere, "alive, but went to an advance instead"),
            (AgainstWhy::Withdrawn, "stopped waiting at the exit"),
            (AgainstWhy::EnteredAgain, "entered again before its exit"),
        ] {
            assert_eq!(block_failure(&why), words, "{why:?}");
        }
    }
}
