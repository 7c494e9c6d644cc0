// Package media reads the media types by which archives and registries say what a document or a part of an image is.
package media

import (
	"mime"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Of returns a media type in small letters and without its parameters: "Application/JSON; charset=utf-8" is "application/json" (RFC 9110,
// 8.3.1). One that is none is returned as it is, up to its first semicolon.
func Of[S ~string](said S) types.MediaType {
	if t, _, err := mime.ParseMediaType(string(said)); err == nil {
		return types.MediaType(t)
	}
	t, _, _ := strings.Cut(string(said), ";")
	return types.MediaType(strings.ToLower(strings.TrimSpace(t)))
}

// IsLayer reports whether a media type is that of an image's layer that can be unpacked: a tar, plain, gzip or zstd.
func IsLayer[S ~string](said S) bool {
	t := string(Of(said))
	for _, kind := range []string{
		"application/vnd.oci.image.layer.v1.", "application/vnd.oci.image.layer.nondistributable.v1.",
		"application/vnd.docker.image.rootfs.diff.", "application/vnd.docker.image.rootfs.foreign.diff.",
	} {
		if form, ok := strings.CutPrefix(t, kind); ok {
			switch form {
			case "tar", "tar+gzip", "tar+zstd", "tar.gzip", "tar.zstd":
				return true
			}
		}
	}
	return false
}

// IsForeign reports whether a layer may lie elsewhere than in the registry.
func IsForeign[S ~string](said S) bool {
	t := string(Of(said))
	return strings.Contains(t, ".nondistributable.") || strings.Contains(t, ".foreign.")
}

// IsDocument reports whether a media type is that of an image's manifest or of an index of such.
func IsDocument[S ~string](said S) bool { return Of(said).IsImage() || Of(said).IsIndex() }

// IsConfig reports whether a media type is that of an image's configuration. Docker's registry of 2016 called it by one of the other three, and such
// images are still there (github.com/distribution/distribution/issues/1621); Docker takes them, too.
func IsConfig[S ~string](said S) bool {
	t := Of(said)
	return t.IsConfig() || t == "application/octet-stream" || t == "application/json" || t == "text/html"
}

// IsArtifact reports whether an artifact type says that its document is no image. Of an image some programs give the type of its
// configuration, as the specification of referrers does (distribution-spec, "listing referrers").
func IsArtifact(said string) bool { return said != "" && !Of(said).IsConfig() }
