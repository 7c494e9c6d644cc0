package template

import (
	"encoding/json"
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"berth/internal/spec/vnode"
)

// The bounds of a parameter without bounds of its own, and the largest bounds that it may have.
const (
	defaultPattern = `([A-Za-z0-9._][A-Za-z0-9._-]*)?` // a word that begins with '-' would be an option of the program
	defaultLength  = 64
	defaultWords   = 16
	mostLength     = 4096
	mostWords      = 256
)

// longestAmount is the most bytes of a number or a size: more are not looked at.
const longestAmount = 32

// plain are numbers as every reader takes them: no sign but '-', no exponent, no other base, no grouping.
var (
	plainNumber  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\A(0|[1-9][0-9]{0,14})(\.[0-9]{1,9})?\z`) }) // made when it is needed: each start of berth would pay
	plainInteger = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\A(0|-?[1-9][0-9]{0,17})\z`) })              // made when it is needed: each start of berth would pay
)

// amount reads a value of a type that has an order.
func (p Type) amount(text string) (*big.Rat, error) {
	if len(text) > longestAmount {
		return nil, fmt.Errorf("%.40q… is too long for a value of type %s", text, p)
	}
	var n int64
	var err error
	switch p {
	case Number:
		if !plainNumber().MatchString(text) {
			return nil, fmt.Errorf("%q is not a number: digits with at most one point, for example 1.5", text)
		}
		r, _ := new(big.Rat).SetString(text)
		return r, nil
	case Integer:
		if !plainInteger().MatchString(text) {
			return nil, fmt.Errorf("%q is not a whole number", text)
		}
		n, err = strconv.ParseInt(text, 10, 64)
	case Size:
		var v vnode.Bytes
		v, err = vnode.ParseBytes(text)
		n = int64(v)
	case Rate:
		var v vnode.Rate
		v, err = vnode.ParseRate(text)
		n = int64(v)
	case BitRate:
		var v vnode.BitRate
		v, err = vnode.ParseBitRate(text)
		n = int64(v)
	}
	return new(big.Rat).SetInt64(n), err
}

// ordered reports whether values of a type have an order, and so bounds.
func (p Type) ordered() bool { return slices.Contains([]Type{Number, Integer, Size, Rate, BitRate}, p) }

// scalar reads one value, which came as text or from JSON, as text.
func scalar(value any) (string, error) {
	switch v := value.(type) {
	case string:
		return v, nil
	case json.Number:
		return v.String(), nil
	case int:
		return strconv.Itoa(v), nil
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64), nil
	case nil:
		return "", fmt.Errorf("no value: leave it out or give it one")
	case bool:
		return "", fmt.Errorf("true and false are no values here")
	case []any, []string:
		return "", fmt.Errorf("a list where a single value is expected")
	}
	return "", fmt.Errorf("keys and values where a single value is expected")
}

// one checks a single value and returns it as text.
func (p *Parameter) one(value any) (string, error) {
	text, err := scalar(value)
	if err != nil {
		return "", err
	}
	switch {
	case p.Type == Choice:
		if !slices.Contains(p.Of, Text(text)) {
			return "", fmt.Errorf("%.80q is not allowed: %s", text, p.Bounds())
		}
		return text, nil
	case p.Type.ordered():
		return text, p.within(text)
	}
	return text, p.words(text)
}

// within checks a value against the bounds.
func (p *Parameter) within(text string) error {
	v, err := p.Type.amount(text)
	if err != nil {
		return err
	}
	least := Text("0")
	if p.Min != nil {
		least = *p.Min
	}
	if low, err := p.Type.amount(string(least)); err == nil && v.Cmp(low) < 0 {
		return fmt.Errorf("%s is below %s", text, least)
	}
	if p.Max == nil {
		return nil
	}
	if high, err := p.Type.amount(string(*p.Max)); err != nil || v.Cmp(high) > 0 {
		return fmt.Errorf("%s is above %s", text, *p.Max)
	}
	return nil
}

// words checks a string, or a word of a list. It takes only characters that are seen: nothing that turns the direction of writing,
// joins without a width, or ends a line.
func (p *Parameter) words(text string) error {
	most := p.Length
	if most == 0 {
		most = defaultLength
	}
	if len(text) > most*utf8.UTFMax || utf8.RuneCountInString(text) > most {
		return fmt.Errorf("longer than %d characters", most)
	}
	if !utf8.ValidString(text) || strings.ContainsFunc(text, func(c rune) bool { return !unicode.IsPrint(c) }) {
		return fmt.Errorf("%q holds a character that cannot be seen", text)
	}
	pattern := p.Pattern
	if pattern == "" {
		pattern = defaultPattern
	}
	r, err := compile(pattern)
	if err != nil {
		return err
	}
	if !r.MatchString(text) {
		return fmt.Errorf("%q is not allowed: it must match %s", text, pattern)
	}
	return nil
}

// compile makes a regular expression of the whole text. Its time grows with the text alone (RE2).
func compile(pattern string) (*regexp.Regexp, error) {
	if _, err := regexp.Compile(pattern); err != nil { // alone: so that it cannot close the group around it
		return nil, err
	}
	return regexp.Compile(`\A(?:` + pattern + `)\z`)
}

// list checks the words of a list. One text is one word.
func (p *Parameter) list(value any) ([]string, error) {
	var all []any
	switch v := value.(type) {
	case []any:
		all = v
	case []string:
		for _, s := range v {
			all = append(all, s)
		}
	default:
		all = []any{v}
	}
	most := p.Words
	if most == 0 {
		most = defaultWords
	}
	if len(all) > most {
		return nil, fmt.Errorf("%d words: at most %d", len(all), most)
	}
	var words []string
	for _, one := range all {
		text, err := scalar(one)
		if err != nil {
			return nil, err
		}
		if err := p.words(text); err != nil {
			return nil, err
		}
		words = append(words, text)
	}
	return words, nil
}

// Bounds says which values a parameter takes, for people.
func (p *Parameter) Bounds() string {
	orElse := func(t *Text, otherwise string) string {
		if t == nil {
			return otherwise
		}
		return string(*t)
	}
	pattern, length := p.Pattern, p.Length
	if pattern == "" {
		pattern = defaultPattern
	}
	if length == 0 {
		length = defaultLength
	}
	switch {
	case p.Type == Choice:
		var all []string
		for _, one := range p.Of {
			all = append(all, string(one))
		}
		return "one of " + strings.Join(all, ", ")
	case p.Type.ordered() && p.Max == nil && p.Min == nil:
		return "a " + string(p.Type) + ", at most the template's own"
	case p.Type.ordered():
		return fmt.Sprintf("a %s, %s to %s", p.Type, orElse(p.Min, "0"), orElse(p.Max, "the template's own"))
	case p.Type == List:
		words := p.Words
		if words == 0 {
			words = defaultWords
		}
		return fmt.Sprintf("at most %d words of %d characters that match %s", words, length, pattern)
	}
	return fmt.Sprintf("at most %d characters that match %s", length, pattern)
}
