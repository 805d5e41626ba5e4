package api

import (
	"math"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// maxInteger is the largest number that a request may carry: versions are
// bigint in PostgreSQL.
const maxInteger = math.MaxInt64

// What can be wrong with a value; each reads after the field's name.
const (
	badSyntax  = "is not valid JSON"
	badObject  = "is not a JSON object"
	badArray   = "is not a JSON array"
	badString  = "is not a JSON string"
	badNumber  = "is not a whole number, written without fraction or exponent"
	badRange   = "is not in 0..9223372036854775807"
	badControl = "has a control character"
	badUTF8    = "is not UTF-8"
	badEscape  = "has an escape that names no character"
	badEnd     = "has something after its JSON object"
	badTwice   = "is there twice"
)

// jsonReader reads exactly the JSON that a decoder asks for, from left to
// right. It is strict where encoding/json is lenient: names match byte by
// byte and once, strings are valid UTF-8 without lone surrogates (which would
// make different ids equal), numbers are whole and in range. It never recurses
// on input, so depth is no concern; what is not asked for is refused unread.
//
// Its methods give what is wrong in words, empty when nothing is. Strings
// share the memory of s unless they have escapes.
type jsonReader struct {
	s string
	i int
}

func (r *jsonReader) space() {
	for r.i < len(r.s) {
		switch r.s[r.i] {
		case ' ', '\t', '\n', '\r':
			r.i++
		default:
			return
		}
	}
}

// take skips white space and then c, if c is there.
func (r *jsonReader) take(c byte) bool {
	r.space()
	if r.i < len(r.s) && r.s[r.i] == c {
		r.i++
		return true
	}
	return false
}

// more tells, inside an array or object that ends with end, whether another
// element follows; first says that none was read yet.
func (r *jsonReader) more(end byte, first bool) (more bool, bad string) {
	switch {
	case r.take(end):
		return false, ""
	case first:
		return true, ""
	case r.take(','):
		return true, ""
	}
	return false, badSyntax
}

// name reads an object member's name and its colon.
func (r *jsonReader) name() (name, bad string) {
	name, bad = r.str()
	if bad == badString {
		return "", badSyntax
	}
	if bad == "" && !r.take(':') {
		return "", badSyntax
	}
	return name, bad
}

// end makes sure that nothing but white space is left.
func (r *jsonReader) end() (bad string) {
	if r.space(); r.i < len(r.s) {
		return badEnd
	}
	return ""
}

func (r *jsonReader) str() (v, bad string) {
	if !r.take('"') {
		return "", badString
	}
	start, ascii := r.i, true
	for ; r.i < len(r.s); r.i++ {
		switch c := r.s[r.i]; {
		case c == '"':
			v = r.s[start:r.i]
			r.i++
			if !ascii && !utf8.ValidString(v) {
				return "", badUTF8
			}
			return v, ""
		case c == '\\':
			return r.escaped(start)
		case c < 0x20:
			return "", badControl
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	return "", badSyntax
}

// escaped reads the rest of a string that began at start and has its first
// backslash at the reader's place.
func (r *jsonReader) escaped(start int) (v, bad string) {
	b := append(make([]byte, 0, 64), r.s[start:r.i]...)
	for r.i < len(r.s) {
		c := r.s[r.i]
		r.i++
		switch {
		case c == '"':
			if !utf8.Valid(b) {
				return "", badUTF8
			}
			return string(b), ""
		case c < 0x20:
			return "", badControl
		case c == '\\':
			if b, bad = r.escape(b); bad != "" {
				return "", bad
			}
		default:
			b = append(b, c)
		}
	}
	return "", badSyntax
}

func (r *jsonReader) escape(b []byte) (_ []byte, bad string) {
	if r.i >= len(r.s) {
		return b, badSyntax
	}
	c := r.s[r.i]
	r.i++
	if c != 'u' {
		at := strings.IndexByte(`"\/bfnrt`, c)
		if at < 0 {
			return b, badSyntax
		}
		return append(b, "\"\\/\b\f\n\r\t"[at]), ""
	}
	u, ok := r.hex4()
	if !ok {
		return b, badSyntax
	}
	if utf16.IsSurrogate(u) {
		if !strings.HasPrefix(r.s[r.i:], `\u`) {
			return b, badEscape
		}
		r.i += 2
		low, ok := r.hex4()
		if !ok {
			return b, badSyntax
		}
		if u = utf16.DecodeRune(u, low); u == utf8.RuneError {
			return b, badEscape
		}
	}
	return utf8.AppendRune(b, u), ""
}

func (r *jsonReader) hex4() (u rune, ok bool) {
	if len(r.s)-r.i < 4 {
		return 0, false
	}
	for _, c := range []byte(r.s[r.i : r.i+4]) {
		switch {
		case c >= '0' && c <= '9':
			u = u<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			u = u<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			u = u<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	r.i += 4
	return u, true
}

// number reads a whole number in 0..maxInteger.
func (r *jsonReader) number() (v uint64, bad string) {
	r.space()
	start := r.i
	for r.i < len(r.s) && strings.IndexByte("+-.0123456789eE", r.s[r.i]) >= 0 {
		r.i++
	}
	digits := r.s[start:r.i]
	if negative := strings.TrimPrefix(digits, "-"); negative != digits && isDigits(negative) {
		return 0, badRange
	}
	if !isDigits(digits) {
		return 0, badNumber
	}
	for _, c := range []byte(digits) {
		d := uint64(c - '0')
		if v > (maxInteger-d)/10 {
			return 0, badRange
		}
		v = v*10 + d
	}
	return v, ""
}

// isDigits accepts JSON's form of a whole number: digits, no leading zero.
func isDigits(s string) bool {
	if s == "" || s[0] == '0' && len(s) > 1 {
		return false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}

const hexDigits = "0123456789abcdef"

// appendString appends s as a JSON string. s is valid UTF-8.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := range len(s) {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[start:i]...)
		start = i + 1
		if c < 0x20 {
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		} else {
			b = append(b, '\\', c)
		}
	}
	return append(append(b, s[start:]...), '"')
}
