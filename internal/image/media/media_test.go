package media

import "testing"

func TestTypes(t *testing.T) {
	for said, want := range map[string]struct {
		of             string
		layer, foreign bool
		document       bool
	}{
		"application/vnd.oci.image.manifest.v1+json; charset=utf-8":    {of: "application/vnd.oci.image.manifest.v1+json", document: true},
		"Application/Vnd.OCI.image.index.v1+JSON":                      {of: "application/vnd.oci.image.index.v1+json", document: true},
		"application/vnd.docker.distribution.manifest.v2+json;; bad":   {of: "application/vnd.docker.distribution.manifest.v2+json", document: true},
		"application/vnd.oci.image.layer.v1.tar":                       {of: "application/vnd.oci.image.layer.v1.tar", layer: true},
		"application/vnd.oci.image.layer.v1.tar+zstd":                  {of: "application/vnd.oci.image.layer.v1.tar+zstd", layer: true},
		"application/vnd.oci.image.layer.v1.tar+gzip; a=b":             {of: "application/vnd.oci.image.layer.v1.tar+gzip", layer: true},
		"application/vnd.docker.image.rootfs.diff.tar.zstd":            {of: "application/vnd.docker.image.rootfs.diff.tar.zstd", layer: true},
		"application/vnd.docker.image.rootfs.foreign.diff.tar.gzip":    {of: "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", layer: true, foreign: true},
		"application/vnd.oci.image.layer.nondistributable.v1.tar+zstd": {of: "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd", layer: true, foreign: true},
		"application/vnd.oci.image.layer.v1.tar+gzip+encrypted":        {of: "application/vnd.oci.image.layer.v1.tar+gzip+encrypted"},
		"application/vnd.dev.cosign.simplesigning.v1+json":             {of: "application/vnd.dev.cosign.simplesigning.v1+json"},
		"application/vnd.oci.image.layer.v1.squashfs":                  {of: "application/vnd.oci.image.layer.v1.squashfs"},
		"": {},
	} {
		if string(Of(said)) != want.of || IsLayer(said) != want.layer || IsForeign(said) != want.foreign || IsDocument(said) != want.document {
			t.Errorf("%q: %q, layer %v, foreign %v, document %v", said, Of(said), IsLayer(said), IsForeign(said), IsDocument(said))
		}
	}
}

func TestArtifacts(t *testing.T) {
	for said, want := range map[string]bool{
		"": false, "application/spdx+json": true, "application/vnd.oci.image.config.v1+json": false,
		"application/vnd.docker.container.image.v1+json; a=b": false, "application/vnd.cncf.helm.config.v1+json": true,
	} {
		if IsArtifact(said) != want {
			t.Errorf("%q: %v", said, !want)
		}
	}
	for said, want := range map[string]bool{
		"application/vnd.oci.image.config.v1+json; a=b": true, "Application/Octet-Stream": true, "text/html; charset=utf-8": true,
		"": false, "application/vnd.oci.empty.v1+json": false, "application/vnd.cncf.helm.config.v1+json": false,
	} {
		if IsConfig(said) != want {
			t.Errorf("configuration %q: %v", said, !want)
		}
	}
}
