package quota

import "testing"

// TestHolds: what a file system says of a project is what was set, or a little more than that.
func TestHolds(t *testing.T) {
	const asked = 100 << 20
	for _, tt := range []struct {
		name       string
		bytes, ino int64
		ok         bool
	}{
		{"exactly", asked, Files(asked), true},
		{"rounded up", asked + 32<<10, Files(asked), true},
		{"a byte's block less", asked - quotaBlock, Files(asked), false},
		{"64 KiB more", asked + 64<<10, Files(asked), false},
		{"no limit", 0, Files(asked), false},
		{"other files", asked, Files(asked) + 1, false},
	} {
		q := diskQuota{blkHard: uint64(tt.bytes / quotaBlock), inoHard: uint64(tt.ino)}
		if err := q.holds(7, asked); (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
