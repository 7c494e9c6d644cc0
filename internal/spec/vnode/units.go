package vnode

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Bytes is a size in bytes: "4GiB", "512MB", or a bare number.
type Bytes int64

// Rate is a speed in bytes per second: "200MB/s".
type Rate int64

// BitRate is a speed in bits per second: "1Gbit/s".
type BitRate int64

// Cores is an amount of CPU in thousandths of a CPU: "1.5" is 1500.
type Cores int64

type unit struct {
	name string
	size int64
}

// Largest first: String picks the first that divides the value.
var (
	binary   = []unit{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}
	decimal  = []unit{{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}}
	bitUnits = []unit{{"Tbit/s", 1e12}, {"Gbit/s", 1e9}, {"Mbit/s", 1e6}, {"kbit/s", 1e3}, {"bit/s", 1}}
)

// byteUnits returns the units of sizes as written. "KB" is accepted for "kB".
func byteUnits() []unit {
	return append(slices.Concat(binary, decimal), unit{"KB", 1e3}, unit{"B", 1})
}

// ParseBytes reads a size.
func ParseBytes(s string) (Bytes, error) {
	v, err := parseUnit(s, byteUnits(), true)
	if err != nil {
		return 0, fmt.Errorf("%q is not a size: %w, for example 4GiB, 512MB or 1048576", s, err)
	}
	return Bytes(v), nil
}

// ParseRate reads a speed in bytes per second. It refuses 0, which in a Node means no limit.
func ParseRate(s string) (Rate, error) {
	body, ok := strings.CutSuffix(s, "/s")
	if !ok {
		return 0, fmt.Errorf("%q is not a rate: a rate carries its /s, for example 200MB/s", s)
	}
	v, err := parseUnit(body, byteUnits(), false)
	if err == nil && v == 0 {
		err = errNotAbove0
	}
	if err != nil {
		return 0, fmt.Errorf("%q is not a rate: %w, for example 200MB/s or 64MiB/s", s, err)
	}
	return Rate(v), nil
}

// ParseBitRate reads a speed in bits per second. It refuses 0, which in a Node means no limit.
func ParseBitRate(s string) (BitRate, error) {
	v, err := parseUnit(s, bitUnits, false)
	if err == nil && v == 0 {
		err = errNotAbove0
	}
	if err != nil {
		return 0, fmt.Errorf("%q is not a bit rate: %w, for example 1Gbit/s or 100Mbit/s", s, err)
	}
	return BitRate(v), nil
}

// ParseCores reads an amount of CPU: at least 0.01 (the kernel's shortest quota, 1 ms in its usual 100 ms period),
// rounded to thousandths.
func ParseCores(s string) (Cores, error) {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !isPlainNumber(s) || f <= 0 || f > 1e6 {
		return 0, fmt.Errorf("%q is not an amount of CPU: a number above 0, for example 1.5", s)
	}
	m := math.Round(f * 1000)
	if m < 10 {
		return 0, fmt.Errorf("%q is too little CPU: at least 0.01", s)
	}
	return Cores(m), nil
}

// errNotAbove0 is the error for a rate of 0, which a Node would read as "no limit".
var errNotAbove0 = errors.New("it must be above 0")

// parseUnit reads a number and its unit with no space between. bare allows the unit to be missing.
func parseUnit(s string, units []unit, bare bool) (int64, error) {
	digits := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ/")
	name := s[len(digits):]
	size := int64(1)
	switch i := slices.IndexFunc(units, func(u unit) bool { return u.name == name }); {
	case i >= 0:
		size = units[i].size
	case name != "" || !bare:
		return 0, fmt.Errorf("its unit must be one of %s", unitNames(units))
	}
	if strings.HasPrefix(digits, "-") {
		return 0, errors.New("it is below 0")
	}
	if !isPlainNumber(digits) {
		return 0, fmt.Errorf("%q is not a number", digits)
	}
	if n, err := strconv.ParseInt(digits, 10, 64); err == nil {
		if n > math.MaxInt64/size {
			return 0, errors.New("it is too large")
		}
		return n * size, nil
	}
	f, err := strconv.ParseFloat(digits, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number", digits)
	}
	v := math.Round(f * float64(size))
	if v >= math.MaxInt64 {
		return 0, errors.New("it is too large")
	}
	if v == 0 && f > 0 {
		return 0, errors.New("it is less than 1")
	}
	return int64(v), nil
}

// isPlainNumber reports whether s is digits with at most one point between them. It excludes forms that strconv
// accepts: sign, exponent, hexadecimal and digit separators.
func isPlainNumber(s string) bool {
	whole, frac, point := strings.Cut(s, ".")
	return isDigits(whole) && (!point || isDigits(frac))
}

func isDigits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

func unitNames(units []unit) string {
	var names []string
	for _, u := range units {
		if u.name != "KB" { // accepted, not advertised
			names = append(names, u.name)
		}
	}
	return strings.Join(names, ", ")
}

// String writes the value exactly, in the form that the parser reads.
func (b Bytes) String() string { return unitText(int64(b), slices.Concat(binary, decimal), "") }

// String writes the value exactly, in the form that the parser reads.
func (r Rate) String() string { return unitText(int64(r), slices.Concat(decimal, binary), "B") + "/s" }

// String writes the value exactly, in the form that the parser reads.
func (r BitRate) String() string { return unitText(int64(r), bitUnits, "bit/s") }

// String writes the value exactly, in the form that the parser reads.
func (c Cores) String() string { return strconv.FormatFloat(float64(c)/1000, 'f', -1, 64) }

// unitText writes v exactly: in the largest unit that divides it, else as a bare number with the base unit.
func unitText(v int64, units []unit, base string) string {
	best, size := base, int64(1)
	for _, u := range units {
		if v != 0 && v%u.size == 0 && u.size > size {
			best, size = u.name, u.size
		}
	}
	return strconv.FormatInt(v/size, 10) + best
}

// MarshalText returns the text of String.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// MarshalText returns the text of String.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// MarshalText returns the text of String.
func (r BitRate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// MarshalText returns the text of String.
func (c Cores) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads the text with ParseBytes.
func (b *Bytes) UnmarshalText(t []byte) (err error) { *b, err = ParseBytes(string(t)); return }

// UnmarshalText reads the text with ParseRate.
func (r *Rate) UnmarshalText(t []byte) (err error) { *r, err = ParseRate(string(t)); return }

// UnmarshalText reads the text with ParseBitRate.
func (r *BitRate) UnmarshalText(t []byte) (err error) { *r, err = ParseBitRate(string(t)); return }

// UnmarshalText reads the text with ParseCores.
func (c *Cores) UnmarshalText(t []byte) (err error) { *c, err = ParseCores(string(t)); return }
