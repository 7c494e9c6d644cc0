package cli

import (
	"context"
	"errors"
	"strings"

	"berth/internal/spec"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// imageFlag gives a node the image of --image. args is the rest of the command line.
func (a *app) imageFlag(ctx context.Context, f *runFlags, n *vnode.Node, args []string) error {
	if f.image == "" {
		if n.Image.Kind != "" {
			return nil
		}
		const missing = "no image given: --image host, oci:NAME, docker://REF, tar:FILE, oci-layout:DIR, dir:PATH or file:PATH"
		if len(args) > 0 && !strings.HasPrefix(args[0], "-") { // run IMAGE CMD, as in other engines
			if hint := a.imageHint(args[0], "."); strings.HasPrefix(hint, meant) {
				return refuse.Invalidf("%s; %s", missing, strings.Replace(hint, meant, meant+"--image ", 1))
			}
			if ref := registryRef(args[0]); ref != "" && !f.dashed {
				return refuse.Invalidf("%s; if %s is an image of a registry: berth run --image docker://%s -- CMD", missing, args[0], ref)
			}
		}
		return refuse.Invalidf("%s", missing)
	}
	text, err := a.named(ctx, f.image)
	if err != nil {
		return err
	}
	if n.Image, err = vnode.ParseImage(text); err != nil {
		if _, ok := errors.AsType[*vnode.ImageError](err); ok {
			return refuse.Invalidf("--image: %w; %s", err, a.imageHint(f.image, "."))
		}
		return refuse.Invalidf("--image: %w", err)
	}
	return spec.Resolve(n, ".")
}

// registryRef is the image of a registry that a word may mean, with the registry that other engines take if it names none; "" if
// it means none.
func registryRef(word string) string {
	host, _, path := strings.Cut(word, "/")
	switch {
	case path && strings.Contains(strings.TrimLeft(host, "."), "."):
		return word
	case !path && !strings.HasPrefix(word, "."):
		return "docker.io/library/" + word
	}
	return ""
}
