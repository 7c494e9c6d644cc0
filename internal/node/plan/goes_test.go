package plan

import (
	"strings"
	"testing"

	"berth/internal/image"
	"berth/internal/spec/vnode"
	"berth/internal/storage/scratch"
	"berth/internal/sys/step"
)

// TestRemoves: a plan says which files go: with another root all that the node wrote to it, and each volume that the new spec has not as it is.
func TestRemoves(t *testing.T) {
	volume := func(size vnode.Bytes, machine bool) step.Step {
		return &scratch.Volume{Pool: scratch.Pool{ID: "p", Dir: "/srv"}, Node: "n", Target: "/data", Size: size, FS: vnode.Ext4, Machine: machine}
	}
	delta, disk := &image.Delta{Path: "/lib/n/delta"}, &scratch.Disk{Path: "/lib/n/delta", Size: 1 << 20}
	for _, c := range []struct {
		name         string
		held, wanted []step.Step
		newRoot      bool
		want         string
	}{
		{"nothing changes", []step.Step{delta, volume(1<<20, false)}, []step.Step{volume(1<<20, false), delta}, false, ""},
		{"a volume's size", []step.Step{delta, volume(1<<20, false)}, []step.Step{delta, volume(2<<20, false)}, false, "file of 1MiB"},
		{"another image", []step.Step{delta, volume(1<<20, false)}, []step.Step{delta, volume(1<<20, false)}, true, "delta"},
		{"it becomes a machine", []step.Step{delta, volume(1<<20, false)}, []step.Step{disk, volume(1<<20, true)}, true, "delta, file of 1MiB"},
		{"it is one no more", []step.Step{disk, volume(1<<20, true)}, []step.Step{delta, volume(1<<20, false)}, true, "delta, file of 1MiB"},
	} {
		var got []string
		for _, text := range Removes(c.held, c.wanted, c.newRoot) {
			if strings.Contains(text, "/lib/n/delta") {
				got = append(got, "delta")
			} else if strings.Contains(text, "of 1MiB for /data") {
				got = append(got, "file of 1MiB")
			} else {
				got = append(got, text)
			}
		}
		if is := strings.Join(got, ", "); is != c.want {
			t.Errorf("%s: %s, want %s", c.name, is, c.want)
		}
	}
}

// TestSameUnpack: the layers of one image are one claim, by whatever name the image was asked for.
func TestSameUnpack(t *testing.T) {
	unpack := func(manifest, ref string) step.Step {
		return &image.Unpack{Manifest: manifest, Ref: vnode.Image{Kind: vnode.OCILayoutImage, Ref: ref}}
	}
	if held := unpack("sha256:1", "/srv/a"); !Same(held)(unpack("sha256:1", "/srv/b")) || Same(held)(unpack("sha256:2", "/srv/a")) {
		t.Error("the claim of an image's layers goes by its name")
	}
}
