package fio

import (
	"strings"
	"testing"
)

func TestReadErrors(t *testing.T) {
	for _, c := range []struct{ out, says string }{
		{"", "no JSON"},
		{"{", "it ends in the middle"},
		{`{"jobs":[]}`, "0 jobs"},
		{`{"jobs":[{"error":28}]}`, "errno 28"},
		{`{"jobs":[{"mixed":{"iops":0}}]}`, "not one request"},
		{`{"jobs":[{"mixed":{"iops":0,"total_ios":5}}]}`, "not one request"},
		{`{"jobs":[{"mixed":{"iops":5,"total_ios":0}}]}`, "not one request"},
	} {
		if _, err := Read([]byte(c.out)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: %v", c.out, err)
		}
	}
}

func TestReadMetadata(t *testing.T) {
	const out = `{"jobs":[{"error":0,"mixed":{"iops":900,"total_ios":500,"io_bytes":4096,"clat_ns":{"mean":1e6}}}]}`
	if v, err := ReadMetadata([]byte(out), 500); err != nil || v != 1000 {
		t.Errorf("%v, %v", v, err)
	}
	if v, err := Bytes([]byte(out)); err != nil || v != 4096 {
		t.Errorf("%v, %v", v, err)
	}
	if _, err := ReadMetadata([]byte(out), 501); err == nil || !strings.Contains(err.Error(), "500 operations on 501 files") {
		t.Error(err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"jobs":[{"error":0,"mixed":{"iops":1,"total_ios":1,"clat_ns":{"percentile":{"99.000000":1}}}}]}`))
	f.Add([]byte(`note {"jobs":[{}]}`))
	f.Fuzz(func(t *testing.T, out []byte) {
		if v, err := Read(out); err == nil && v["iops"] <= 0 {
			t.Errorf("accepted %v", v)
		}
	})
}
