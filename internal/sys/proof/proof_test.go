package proof

import "testing"

func TestKey(t *testing.T) {
	for _, tt := range []struct {
		kind Kind
		name string
		want string
	}{
		{IOReadRate, "data", "io.data.read.rate"},
		{IOWeight, "data", "io.data.weight"},
		{NetTX, "eth0", "net.eth0.tx"},
		{HugePages, "2MiB", "hugepages.2MiB"},
		{RLimit, "nofile", "rlimits.nofile"},
	} {
		if got := tt.kind.Key(tt.name); got != tt.want {
			t.Errorf("%s of %s: got %s, want %s", tt.kind, tt.name, got, tt.want)
		}
	}
}
