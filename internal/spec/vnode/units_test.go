package vnode

import (
	"encoding"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParseUnits(t *testing.T) {
	t.Parallel()
	bytes := func(s string) (int64, error) { v, err := ParseBytes(s); return int64(v), err }
	rate := func(s string) (int64, error) { v, err := ParseRate(s); return int64(v), err }
	bits := func(s string) (int64, error) { v, err := ParseBitRate(s); return int64(v), err }
	cores := func(s string) (int64, error) { v, err := ParseCores(s); return int64(v), err }
	for _, c := range []struct {
		name  string
		parse func(string) (int64, error)
		in    string
		want  int64
		err   string // part of the message; "" for none
	}{
		{"bytes", bytes, "0", 0, ""},
		{"bytes", bytes, "1048576", 1 << 20, ""},
		{"bytes", bytes, "4GiB", 4 << 30, ""},
		{"bytes", bytes, "1.5GiB", 3 << 29, ""},
		{"bytes", bytes, "512MB", 512e6, ""},
		{"bytes", bytes, "1kB", 1000, ""},
		{"bytes", bytes, "1KB", 1000, ""},
		{"bytes", bytes, "7B", 7, ""},
		{"bytes", bytes, "9223372036854775807", math.MaxInt64, ""},
		{"bytes", bytes, "9223372036854775808", 0, "too large"},
		{"bytes", bytes, "8388608TiB", 0, "too large"},
		{"bytes", bytes, "8388608.0TiB", 0, "too large"},
		{"bytes", bytes, "0.1B", 0, "less than 1"},
		{"bytes", bytes, "-1", 0, "below 0"},
		{"bytes", bytes, "-1GiB", 0, "below 0"},
		{"bytes", bytes, "+1", 0, "not a number"},
		{"bytes", bytes, "", 0, "not a number"},
		{"bytes", bytes, "GiB", 0, "not a number"},
		{"bytes", bytes, "4 GiB", 0, "not a number"},
		{"bytes", bytes, "1e9", 0, "not a number"},
		{"bytes", bytes, "0x10", 0, "not a number"},
		{"bytes", bytes, "1_000", 0, "not a number"},
		{"bytes", bytes, "1.2.3MB", 0, "not a number"},
		{"bytes", bytes, ".5GiB", 0, "not a number"},
		{"bytes", bytes, "4G", 0, "its unit must be one of TiB"},
		{"bytes", bytes, "4gib", 0, "its unit must be one of TiB"},
		{"bytes", bytes, "NaN", 0, "its unit must be"},
		{"rate", rate, "200MB/s", 200e6, ""},
		{"rate", rate, "1.5kB/s", 1500, ""},
		{"rate", rate, "200MB", 0, "carries its /s"},
		{"rate", rate, "200", 0, "carries its /s"},
		{"rate", rate, "200/s", 0, "its unit must be"},
		{"rate", rate, "0MB/s", 0, "above 0"},
		{"rate", rate, "1Mbit/s", 0, "its unit must be"},
		{"rate", rate, "1MB/s/s", 0, "its unit must be"},
		{"bits", bits, "1Gbit/s", 1e9, ""},
		{"bits", bits, "0.5Mbit/s", 5e5, ""},
		{"bits", bits, "1bit/s", 1, ""},
		{"bits", bits, "0bit/s", 0, "above 0"},
		{"bits", bits, "1Gbit", 0, "its unit must be"},
		{"bits", bits, "1GB/s", 0, "its unit must be"},
		{"bits", bits, "1000", 0, "its unit must be"},
		{"cores", cores, "1.5", 1500, ""},
		{"cores", cores, "2", 2000, ""},
		{"cores", cores, "0.01", 10, ""},
		{"cores", cores, "0.009", 0, "too little"},
		{"cores", cores, "0", 0, "above 0"},
		{"cores", cores, "-1", 0, "above 0"},
		{"cores", cores, "1e2", 0, "above 0"},
		{"cores", cores, "0x1p3", 0, "above 0"},
		{"cores", cores, "inf", 0, "above 0"},
		{"cores", cores, "nan", 0, "above 0"},
		{"cores", cores, "150%", 0, "above 0"},
	} {
		t.Run(c.name+" "+c.in, func(t *testing.T) {
			t.Parallel()
			got, err := c.parse(c.in)
			if c.err == "" && (err != nil || got != c.want) {
				t.Errorf("got %d, %v, want %d", got, err, c.want)
			}
			if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("got %d, %v, want an error with %q", got, err, c.err)
			}
		})
	}
}

// roundTrip checks that a value's text is read as the same value.
func roundTrip[T interface {
	comparable
	encoding.TextMarshaler
}, P interface {
	*T
	encoding.TextUnmarshaler
}](t *testing.T, gen *rapid.Generator[T]) {
	t.Helper()
	rapid.Check(t, func(t *rapid.T) {
		want := gen.Draw(t, "value")
		text, err := want.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		var got T
		if err := P(&got).UnmarshalText(text); err != nil || got != want {
			t.Fatalf("%v: %q reads as %v, %v", want, text, got, err)
		}
	})
}

// rounded draws numbers as people write them: few digits, then decimal or binary zeros.
func rounded() *rapid.Generator[int64] {
	return rapid.OneOf(
		rapid.Int64Range(1, math.MaxInt64),
		rapid.Custom(func(t *rapid.T) int64 {
			size := rapid.SampledFrom([]int64{1, 1e3, 1e6, 1e9, 1e12, 1 << 10, 1 << 20, 1 << 30, 1 << 40}).Draw(t, "unit")
			return rapid.Int64Range(1, 9999).Draw(t, "number") * size
		}),
	)
}

func TestUnitsRoundTrip(t *testing.T) {
	t.Parallel()
	t.Run("bytes", func(t *testing.T) {
		roundTrip[Bytes](t, rapid.Map(rapid.OneOf(rounded(), rapid.Just(int64(0))), func(v int64) Bytes { return Bytes(v) }))
	})
	t.Run("rate", func(t *testing.T) {
		roundTrip[Rate](t, rapid.Map(rounded(), func(v int64) Rate { return Rate(v) }))
	})
	t.Run("bit rate", func(t *testing.T) {
		roundTrip[BitRate](t, rapid.Map(rounded(), func(v int64) BitRate { return BitRate(v) }))
	})
	t.Run("cores", func(t *testing.T) {
		roundTrip[Cores](t, rapid.Map(rapid.Int64Range(10, 1e9), func(v int64) Cores { return Cores(v) }))
	})
}

func TestCPUSet(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, want string }{
		{"", ""},
		{"0", "0"},
		{"0-1", "0-1"},
		{"4,0-1", "0-1,4"},
		{"0,1,2,3", "0-3"},
		{"3-3", "3"},
		{"0-5,2-8,8", "0-8"},
		{"8191", "8191"},
	} {
		if got, err := ParseCPUSet(c.in); err != nil || string(got) != c.want {
			t.Errorf("ParseCPUSet(%q) = %q, %v, want %q", c.in, got, err, c.want)
		}
	}
	for _, in := range []string{
		"-", "1-", "-1", "2-1", "a", "0,,1", ",", "0 1", "8192", "0-99999999999", "+1", "0-1-2",
		strings.Repeat("0-8191,", 999) + "0",
	} {
		if got, err := ParseCPUSet(in); err == nil {
			t.Errorf("ParseCPUSet(%.20q) = %q, want an error", in, got)
		}
	}
}

func TestCPUSetRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := NewCPUSet(rapid.SliceOf(rapid.IntRange(0, 70)).Draw(t, "cpus")...)
		got, err := ParseCPUSet(string(want))
		if err != nil || got != want || NewCPUSet(want.List()...) != want {
			t.Fatalf("%q reads as %q, %v", want, got, err)
		}
	})
}
