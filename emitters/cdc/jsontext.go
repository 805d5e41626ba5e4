package cdc

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

const hexDigits = "0123456789ABCDEF"

// plain tells which bytes stand for themselves in a JSON string.
var plain = func() (p [256]bool) {
	for c := 0x20; c < utf8.RuneSelf; c++ {
		p[c] = c != '"' && c != '\\'
	}
	return p
}()

// appendString appends text as a JSON string, quoted, byte for byte as Kafka
// Connect's converter (Jackson) does: control characters escaped, characters
// beyond U+FFFF as two surrogates. Invalid UTF-8 is replaced by U+FFFD.
func appendString(dst, text []byte) []byte {
	return append(appendEscaped(append(dst, '"'), text), '"')
}

func appendEscaped(dst, text []byte) []byte {
	start := 0
	for i := 0; i < len(text); {
		c := text[i]
		if plain[c] {
			i++
			continue
		}
		if c < utf8.RuneSelf {
			dst = appendEscape(append(dst, text[start:i]...), c)
			i++
			start = i
			continue
		}
		r, size := utf8.DecodeRune(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			dst = append(append(dst, text[start:i]...), "\ufffd"...)
		case r > 0xFFFF:
			high, low := utf16.EncodeRune(r)
			dst = appendUnit(appendUnit(append(dst, text[start:i]...), high), low)
		default:
			i += size
			continue
		}
		i += size
		start = i
	}
	return append(dst, text[start:]...)
}

func appendEscape(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\b':
		return append(dst, '\\', 'b')
	case '\f':
		return append(dst, '\\', 'f')
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	return appendUnit(dst, rune(c))
}

// appendUnit appends the escape of a UTF-16 code unit.
func appendUnit(dst []byte, u rune) []byte {
	return append(dst, '\\', 'u', hexDigits[u>>12&15], hexDigits[u>>8&15], hexDigits[u>>4&15], hexDigits[u&15])
}

// appendTimestamp appends a timestamptz as Debezium's ZonedTimestamp prints
// it, quoted, with all six digits of the fraction: 2026-08-19T10:20:30.123400Z.
// text is PostgreSQL's own form under DateStyle ISO and TimeZone UTC, which
// trims them: 2026-08-19 10:20:30.1234+00. Years above 9999 get a plus, years
// BC a minus (1 BC is year 0), as Java's ISO form has them; infinity and
// -infinity stay.
func appendTimestamp(dst, text []byte) ([]byte, error) {
	if string(text) == "infinity" || string(text) == "-infinity" {
		return appendString(dst, text), nil
	}
	rest, bc := bytes.CutSuffix(text, []byte(" BC"))
	day, clock, ok := bytes.Cut(rest, []byte{' '})
	clock, utc := bytes.CutSuffix(clock, []byte("+00"))
	year, monthDay, dashed := bytes.Cut(day, []byte{'-'})
	seconds, fraction, _ := bytes.Cut(clock, []byte{'.'})
	if !ok || !utc || !dashed || !form(year, "") || !form(monthDay, "-") || !form(seconds, ":") || !micros(fraction) {
		return dst, fmt.Errorf("timestamp of %d bytes is not in ISO form at UTC", len(text))
	}
	dst = append(dst, '"')
	switch {
	case bc:
		dst = appendYearBC(dst, year)
	case len(year) > 4:
		dst = append(append(dst, '+'), year...)
	default:
		dst = append(dst, year...)
	}
	dst = append(append(append(dst, '-'), monthDay...), 'T')
	return append(appendMicros(append(dst, seconds...), fraction), 'Z', '"'), nil
}

// micros tells whether text is what may stand behind a second's point.
func micros(text []byte) bool { return len(text) == 0 || len(text) <= 6 && form(text, "") }

// appendMicros appends a fraction of a second with all its six digits.
func appendMicros(dst, fraction []byte) []byte {
	dst = append(append(dst, '.'), fraction...)
	return append(dst, "000000"[len(fraction):]...)
}

// form tells whether text is digits and the given separators.
func form(text []byte, separators string) bool {
	for _, c := range text {
		if (c < '0' || c > '9') && strings.IndexByte(separators, c) < 0 {
			return false
		}
	}
	return len(text) > 0
}

func appendYearBC(dst, year []byte) []byte {
	n := 0
	for _, c := range year {
		n = n*10 + int(c-'0')
	}
	if n--; n <= 0 {
		return append(dst, "0000"...)
	}
	return fmt.Appendf(dst, "-%04d", n)
}
