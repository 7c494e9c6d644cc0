package registry

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// FuzzManifest reads any bytes as a manifest and as an index. What passes has file names for digests, and sizes whose sum
// is bounded.
func FuzzManifest(f *testing.F) {
	digest := "sha256:" + strings.Repeat("0", 64)
	part := func(media, size string) string {
		return `{"mediaType":"` + media + `","digest":"` + digest + `","size":` + size + `}`
	}
	f.Add([]byte(`{"config":` + part(configType, "3") + `,"layers":[` + part(layerType, "5") + `]}`))
	f.Add([]byte(`{"config":` + part(configType, "3") + `,"layers":[` + part(layerType, "9223372036854775807") + `,` + part(layerType, "-1") + `]}`))
	f.Add([]byte(`{"manifests":[` + part(manifestType, "3") + `,{"platform":{"os":"linux","architecture":"amd64"},"digest":"` + digest + `"}]}`))
	ref, err := name.ParseReference("registry.example/app:1")
	if err != nil {
		f.Fatal(err)
	}
	p := &puller{ref: ref}
	f.Fuzz(func(t *testing.T, text []byte) {
		var m v1.Manifest
		if json.Unmarshal(text, &m) == nil && p.check(m) == nil {
			sum := m.Config.Size
			for _, d := range append(m.Layers, m.Config) {
				if len(d.Digest.Hex) != 64 || strings.Trim(d.Digest.Hex, "0123456789abcdef") != "" || d.Size < 0 || len(d.URLs) > 0 && d.Digest != m.Config.Digest {
					t.Errorf("accepted %+v", d)
				}
			}
			for i, l := range m.Layers {
				twice := false
				for _, before := range m.Layers[:i] {
					twice = twice || before.Digest == l.Digest
				}
				if !twice {
					sum += l.Size
				}
			}
			if sum < 0 || sum > mostBytes+mostConfig {
				t.Errorf("accepted %d bytes", sum)
			}
		}
		var index v1.IndexManifest
		if json.Unmarshal(text, &index) == nil {
			_, err := p.pick(index, v1.Platform{OS: "linux", Architecture: "amd64"})
			if err != nil && strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' || r == 0x7f }) {
				t.Errorf("%q", err)
			}
		}
	})
}
