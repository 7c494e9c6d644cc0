package jsonfile

import (
	"bytes"
	"encoding/json"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"berth/internal/sys/refuse"
)

// CheckText refuses a text that JSON cannot hold. Names of files, words of commands and variables are bytes; JSON's texts are UTF-8,
// and encoding/json writes and reads U+FFFD in the place of any other byte, without a word: another name. what names the text in the
// error.
func CheckText(what, text string) error {
	if utf8.ValidString(text) {
		return nil
	}
	return refuse.Invalidf("%s %q is not UTF-8, and Berth could only note another one: give it a name in UTF-8", what, text)
}

// Marshal is json.Marshal for values that must be read back unchanged: it refuses texts that are not UTF-8 (CheckText
// says why).
func Marshal(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	// The encoder escapes the U+FFFD that it puts in place of a byte, and writes one that was there as it is.
	if text := escaped(data, func(c rune, _ bool) bool { return c == utf8.RuneError }); text != "" {
		return nil, refuse.Invalidf("%s is not UTF-8 (\\ufffd stands for what is not), and another one would be noted", text)
	}
	return data, nil
}

// CheckExact refuses JSON that a client sent and that encoding/json would read as other texts than those that were meant: with bytes
// that are not UTF-8, or escaped halves of UTF-16 pairs, as Python writes such bytes of a name ("\udce9").
func CheckExact(data []byte) error {
	if !utf8.Valid(data) {
		return refuse.Invalidf("it is not UTF-8")
	}
	if text := escaped(data, func(_ rune, half bool) bool { return half }); text != "" {
		return refuse.Invalidf("%s is not UTF-8: it holds half of a UTF-16 pair", text)
	}
	return nil
}

// escaped returns the first text of a JSON document, as it stands there, with an escaped character (\uXXXX) that is looked for; "" if
// there is none. half: it is one half of a UTF-16 pair without the other.
func escaped(data []byte, is func(c rune, half bool) bool) string {
	unit := func(at int) rune {
		if at+6 > len(data) || data[at] != '\\' || data[at+1] != 'u' {
			return -1
		}
		n, err := strconv.ParseUint(string(data[at+2:at+6]), 16, 16)
		if err != nil {
			return -1
		}
		return rune(n)
	}
	for i := bytes.IndexByte(data, '\\'); i >= 0 && i < len(data); {
		size := 2 // a backslash, and what it escapes
		if c := unit(i); c >= 0 {
			size = 6
			half := utf16.IsSurrogate(c)
			if half && utf16.DecodeRune(c, unit(i+6)) != utf8.RuneError {
				half, size = false, 12
			}
			if is(c, half) {
				return textAround(data, i)
			}
		}
		i = min(i+size, len(data))
		next := bytes.IndexByte(data[i:], '\\')
		if next < 0 {
			break
		}
		i += next
	}
	return ""
}

// textAround returns the JSON text that the escape at an offset is in, with its quotes.
func textAround(data []byte, at int) string {
	begin, end := at, at
	for begin > 0 && (data[begin] != '"' || escapes(data[:begin])%2 == 1) {
		begin--
	}
	for end < len(data) && (data[end] != '"' || escapes(data[:end])%2 == 1) {
		end++
	}
	return string(data[begin:min(end+1, len(data))])
}

// escapes counts the backslashes at the end.
func escapes(data []byte) int { return len(data) - len(bytes.TrimRight(data, `\`)) }
