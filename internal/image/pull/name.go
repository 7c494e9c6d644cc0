package pull

import (
	"strings"

	"berth/internal/sys/refuse"
)

// Transport is the prefix by which Podman and skopeo mark a reference to a registry.
const Transport = "docker://"

// Name returns the full name of a reference: registry, repository, and a tag or a digest. The tag is latest where none is
// given, and an image of Docker Hub without a maker is one of "library", as everywhere. The registry must be said: which
// one a short name means differs between hosts, and the owner of the name in that registry would choose what runs here.
func Name(ref string) (string, error) {
	ref = strings.TrimPrefix(ref, Transport)
	if ref == "" || strings.ContainsAny(ref, " \t\r\n") || strings.Contains(ref, "://") {
		return "", &refuse.Error{
			Kind: refuse.Invalid, What: "\"" + ref + "\" is not the name of an image in a registry",
			Remedy: "write REGISTRY/REPOSITORY:TAG, as in docker.io/library/debian:12",
		}
	}
	host, path, slash := strings.Cut(ref, "/")
	if !slash || host != "localhost" && !strings.ContainsAny(host, ".:") {
		meant := ref
		if !slash {
			meant = "library/" + ref
		}
		return "", &refuse.Error{
			Kind: refuse.Invalid, What: ref + " does not say which registry it is in",
			Remedy: "docker.io/" + meant + " is the one of Docker Hub",
		}
	}
	if host == "docker.io" && !strings.Contains(path, "/") {
		path = "library/" + path
	}
	last := path[strings.LastIndex(path, "/")+1:]
	if !strings.ContainsAny(last, ":@") {
		path += ":latest"
	}
	return host + "/" + path, nil
}
