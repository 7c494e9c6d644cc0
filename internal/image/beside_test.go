package image

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"berth/internal/image/imagetest"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

const ociTypes = "application/vnd.oci.image."

// beside adds manifests to the index of a layout. A manifest is given as text; entry is what its entry in the index says beside digest and size.
func beside(t *testing.T, dir string, manifests map[string]string) {
	t.Helper()
	path := filepath.Join(dir, "index.json")
	text, err := os.ReadFile(path)
	testkit.Must(t, err)
	var index struct {
		SchemaVersion int               `json:"schemaVersion"`
		Manifests     []json.RawMessage `json:"manifests"`
	}
	testkit.Must(t, json.Unmarshal(text, &index))
	testkit.Must(t, os.MkdirAll(filepath.Join(dir, "blobs/sha256"), 0o755))
	for entry, manifest := range manifests {
		d := imagetest.Digest([]byte(manifest))
		testkit.Must(t, os.WriteFile(filepath.Join(dir, "blobs/sha256", d[len("sha256:"):]), []byte(manifest), 0o600))
		index.Manifests = append(index.Manifests, json.RawMessage(fmt.Sprintf(`{%s,"digest":%q,"size":%d}`, entry, d, len(manifest))))
	}
	text, err = json.Marshal(index)
	testkit.Must(t, err, os.WriteFile(path, text, 0o600))
}

// TestArtifactsBeside: what lies beside an image and is none is passed over and named, whether an image is picked or not.
func TestArtifactsBeside(t *testing.T) {
	empty := `{"mediaType":"application/vnd.oci.empty.v1+json","digest":"` + imagetest.Digest([]byte("{}")) + `","size":2}`
	blob := func(media string) string {
		return `{"mediaType":"` + media + `","digest":"` + imagetest.Digest([]byte("x")) + `","size":1}`
	}
	manifest := `"mediaType":"` + ociTypes + `manifest.v1+json"`
	for name, c := range map[string]struct {
		entry, manifest, named string
	}{
		"SBOM":          {manifest + `,"artifactType":"application/spdx+json"`, `{` + manifest + `,"artifactType":"application/spdx+json","config":` + empty + `,"layers":[` + blob("application/spdx+json") + `]}`, "application/spdx+json"},
		"with a name":   {manifest + `,"annotations":{"org.opencontainers.image.ref.name":"sbom:1\nx"}`, `{` + manifest + `,"artifactType":"application/spdx+json","config":` + empty + `,"layers":[]}`, "application/spdx+json (sbom:1 x)"},
		"configuration": {manifest, `{` + manifest + `,"config":` + blob("application/vnd.cncf.helm.config.v1+json") + `,"layers":[]}`, "application/vnd.cncf.helm.config.v1+json"},
		"signature":     {manifest, `{` + manifest + `,"config":` + blob(ociTypes+"config.v1+json") + `,"layers":[` + blob("application/vnd.dev.cosign.simplesigning.v1+json") + `]}`, "application/vnd.dev.cosign.simplesigning.v1+json"},
		"encrypted":     {manifest, `{` + manifest + `,"config":` + blob(ociTypes+"config.v1+json") + `,"layers":[` + blob(ociTypes+"layer.v1.tar+gzip+encrypted") + `]}`, ociTypes + "layer.v1.tar+gzip+encrypted"},
		"another type":  {`"mediaType":"text/plain"`, "no JSON", "text/plain"},
		"an index":      {`"mediaType":"` + ociTypes + `index.v1+json"`, `{"artifactType":"application/x","manifests":[]}`, "application/x"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := imagetest.OCILayout(t, twoLayers(t))
			beside(t, dir, map[string]string{c.entry: c.manifest})
			s := newStore(t)
			r, err := s.Import(t.Context(), dir, As{Name: "x"}, nil)
			if diff := cmp.Diff([]string{c.named}, r.Beside); diff != "" || err != nil || len(r.Layers) != 2 {
				t.Fatal(err, diff)
			}
			if _, err := s.Import(t.Context(), dir, As{Name: "y", Pick: r.Manifest}, nil); err != nil {
				t.Error("picked:", err)
			}
			if img, err := s.Resolve(vnode.Image{Kind: vnode.OCILayoutImage, Ref: dir}); err != nil || img.Manifest != r.Manifest {
				t.Error("as oci-layout:", err)
			}
			digest := imagetest.Digest([]byte(c.manifest))
			if _, err := s.Import(t.Context(), dir, As{Name: "z", Pick: digest}, nil); refuse.KindOf(err) != refuse.NotFound {
				t.Errorf("picked what is no image: %v", err)
			}
		})
	}
	dir := imagetest.OCILayout(t)
	beside(t, dir, map[string]string{manifest: `{` + manifest + `,"artifactType":"application/x","config":` + empty + `,"layers":[]}`})
	if _, err := newStore(t).Import(t.Context(), dir, As{Name: "x"}, nil); refuse.KindOf(err) != refuse.Invalid || !strings.Contains(err.Error(), "application/x") {
		t.Errorf("no image at all: %v", err)
	}
	beside(t, dir, map[string]string{
		manifest + `,"platform":{"os":"linux","architecture":"s390x"}`: "another", manifest + `,"platform":{"os":"linux","architecture":"mips"}`: "a third",
	})
	if _, err := newStore(t).Import(t.Context(), dir, As{Name: "x"}, nil); refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "is for linux/mips, linux/s390x") {
		t.Errorf("for other machines: %v", err)
	}
}

// TestOldConfiguration: the registry of 2016 gave the configurations of images another type. They are images.
func TestOldConfiguration(t *testing.T) {
	for said, want := range map[string]string{"application/octet-stream": "", "": "", "application/vnd.oci.empty.v1+json": "application/vnd.oci.empty.v1+json"} {
		var m manifest
		m.Config.MediaType = types.MediaType(said)
		if got := m.artifact(); got != want {
			t.Errorf("configuration of type %q: %q", said, got)
		}
	}
}
