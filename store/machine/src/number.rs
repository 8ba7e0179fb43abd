//! Decimal numbers as C's `strtoll` reads them: how `add` reads a value.

/// Reads leading white space, an optional sign and digits up to the first other
/// byte. None if there is no digit or the number does not fit.
pub(crate) fn parse(text: &[u8]) -> Option<i64> {
    let start = text.iter().position(|byte| !is_space(*byte))?;
    let (negative, digits) = match text[start] {
        b'-' => (true, &text[start + 1..]),
        b'+' => (false, &text[start + 1..]),
        _ => (false, &text[start..]),
    };
    let digits = &digits[..digits.iter().take_while(|byte| byte.is_ascii_digit()).count()];
    if digits.is_empty() {
        return None;
    }
    // Counted downwards, since the lowest number has no positive twin.
    let below_zero = digits.iter().try_fold(0i64, |number, digit| {
        number.checked_mul(10)?.checked_sub(i64::from(digit - b'0'))
    })?;
    if negative { Some(below_zero) } else { below_zero.checked_neg() }
}

/// C's `isspace` in the "C" locale, which knows the vertical tab too.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_strtoll_reads() {
        let table: &[(&[u8], Option<i64>)] = &[
            (b"0", Some(0)),
            (b"42", Some(42)),
            (b"-42", Some(-42)),
            (b"+42", Some(42)),
            (b"  7", Some(7)),
            (b"\t\n\x0b\x0c\r 7 ", Some(7)),
            (b"12abc", Some(12)),
            (b"0x10", Some(0)),
            (b"007", Some(7)),
            (b"1\x002", Some(1)),
            (b"9223372036854775807", Some(i64::MAX)),
            (b"-9223372036854775808", Some(i64::MIN)),
            (b"9223372036854775808", None),
            (b"-9223372036854775809", None),
            (b"99999999999999999999999999", None),
            (b"", None),
            (b"   ", None),
            (b"abc", None),
            (b"-", None),
            (b"- 1", None),
            (b"+-1", None),
            (b"\x001", None),
            (b"\xff", None),
        ];
        for (text, number) in table {
            assert_eq!(parse(text), *number, "{:?}", String::from_utf8_lossy(text));
        }
    }
}
