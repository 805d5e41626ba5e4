package intake

import (
	"math"
	"unicode/utf16"
	"unicode/utf8"
)

// scanner reads JSON of a known shape in one pass and without allocation. It
// knows objects, strings, natural numbers and null; anything else, and any error,
// makes it bad, after which every method returns nothing. Bad means "ask
// encoding/json", never "wrong": what the scanner accepts, encoding/json reads
// as the same value (FuzzEnvelope, FuzzEvent).
//
// Its input must be UTF-8.
type scanner struct {
	b   []byte
	i   int
	bad bool
}

func (s *scanner) fail() { s.bad = true }

// space skips white space and tells the next byte, 0 at the end.
func (s *scanner) space() byte {
	for s.i < len(s.b) {
		switch c := s.b[s.i]; c {
		case ' ', '\t', '\r', '\n':
			s.i++
		default:
			return c
		}
	}
	return 0
}

// take skips white space and one c.
func (s *scanner) take(c byte) {
	if s.space() != c {
		s.fail()
		return
	}
	s.i++
}

// next tells whether another member of the current object follows, and steps
// past the comma before it or the brace after the last.
func (s *scanner) next(first bool) bool {
	if s.bad {
		return false
	}
	c := s.space()
	if c == '}' {
		s.i++
		return false
	}
	if !first {
		s.take(',')
	}
	return !s.bad
}

// key reads a member's name and its colon.
func (s *scanner) key() []byte {
	k := s.str()
	s.take(':')
	return k
}

// str reads a string that has no escapes; the result lies in the input.
func (s *scanner) str() []byte {
	s.take('"')
	if s.bad {
		return nil
	}
	v := s.plain()
	if s.i == len(s.b) || s.b[s.i] != '"' {
		s.fail()
		return nil
	}
	s.i++
	return v
}

// text appends a string to dst, with its escapes resolved.
func (s *scanner) text(dst []byte) []byte {
	s.take('"')
	for !s.bad {
		dst = append(dst, s.plain()...)
		switch rest := s.b[s.i:]; {
		case len(rest) > 0 && rest[0] == '"':
			s.i++
			return dst
		case len(rest) < 2 || rest[0] != '\\':
			s.fail()
		case unescaped[rest[1]] != 0:
			dst = append(dst, unescaped[rest[1]])
			s.i += 2
		default:
			dst = utf8.AppendRune(dst, s.character())
		}
	}
	return nil
}

// character reads the escapes of one character: Kafka Connect writes those
// beyond U+FFFF as a surrogate pair. Half a pair makes the scanner bad.
func (s *scanner) character() rune {
	u := s.unit()
	if !utf16.IsSurrogate(u) {
		return u
	}
	r := utf16.DecodeRune(u, s.unit())
	if r == utf8.RuneError {
		s.fail()
	}
	return r
}

// unit reads a backslash, u and four hexadecimal digits.
func (s *scanner) unit() (u rune) {
	rest := s.b[s.i:]
	if len(rest) < 6 || rest[0] != '\\' || rest[1] != 'u' {
		s.fail()
		return 0
	}
	for _, c := range rest[2:6] {
		switch d := c | 0x20; {
		case '0' <= c && c <= '9':
			u = u<<4 | rune(c-'0')
		case 'a' <= d && d <= 'f':
			u = u<<4 | rune(d-'a'+10)
		default:
			s.fail()
			return 0
		}
	}
	s.i += 6
	return u
}

// plain reads up to a quote, a backslash, a control character or the end.
func (s *scanner) plain() []byte {
	rest := s.b[s.i:]
	for j, c := range rest {
		if stops[c] {
			s.i += j
			return rest[:j]
		}
	}
	s.i = len(s.b)
	return rest
}

// stops are the bytes that end a run of plain text in a string.
var stops = func() (t [256]bool) {
	for c := range 0x20 {
		t[c] = true
	}
	t['"'], t['\\'] = true, true
	return t
}()

// unescaped is what a backslash and the byte stand for.
var unescaped = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// natural reads a whole number without a sign that fits an int64.
func (s *scanner) natural() int64 {
	s.space()
	j, n := s.i, int64(0)
	for ; j < len(s.b) && '0' <= s.b[j] && s.b[j] <= '9'; j++ {
		if n > (math.MaxInt64-9)/10 {
			s.fail()
			return 0
		}
		n = n*10 + int64(s.b[j]-'0')
	}
	if j == s.i || s.b[s.i] == '0' && j > s.i+1 || j < len(s.b) && (s.b[j] == '.' || s.b[j]|0x20 == 'e') {
		s.fail()
		return 0
	}
	s.i = j
	return n
}

// null reads the literal.
func (s *scanner) null() {
	if s.space() != 'n' || s.i+4 > len(s.b) || string(s.b[s.i:s.i+4]) != "null" {
		s.fail()
		return
	}
	s.i += 4
}

// skip reads past a string, a natural number or null.
func (s *scanner) skip() {
	switch c := s.space(); {
	case c == '"':
		s.str()
	case c == 'n':
		s.null()
	default:
		s.natural()
	}
}

// once marks a member as seen; a second one makes the scanner bad.
func (s *scanner) once(seen *uint32, bit uint32) {
	if *seen&bit != 0 {
		s.fail()
	}
	*seen |= bit
}

// end tells whether all was read, well.
func (s *scanner) end() bool { return !s.bad && s.space() == 0 && s.i == len(s.b) }
