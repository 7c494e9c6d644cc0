package image

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"berth/internal/image/imagetest"
	"berth/internal/sys/refuse"
	"berth/internal/sys/space"
	"berth/internal/sys/treetar"
	"berth/internal/sys/treetar/treetest"
	"berth/test/testkit"
)

// TestUnpackKeepsTrees unpacks what berth export and berth image serve write of random trees: with access control lists, attributes
// with odd names, times before 1970 and parts of a second.
func TestUnpackKeepsTrees(t *testing.T) {
	testkit.NeedsRoot(t)
	work := t.TempDir()
	files, err := treetar.OpenDescriptors()
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	var n atomic.Int64
	rapid.Check(t, func(rt *rapid.T) {
		from := filepath.Join(work, strconv.FormatInt(n.Add(1), 10))
		defer os.RemoveAll(from)
		treetest.Make(rt, from, treetest.All())
		fd, err := unix.Open(from, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			rt.Fatal(err)
		}
		defer unix.Close(fd)
		var stream bytes.Buffer
		if _, err := treetar.Pack(t.Context(), &stream, fd, treetar.From{Files: files}); err != nil {
			rt.Fatal(err)
		}
		to := from + "to"
		defer os.RemoveAll(to)
		if err := os.Mkdir(to, 0o755); err != nil {
			rt.Fatal(err)
		}
		root, err := os.OpenRoot(to)
		if err != nil {
			rt.Fatal(err)
		}
		defer root.Close()
		u := &unpacker{}
		if err := u.unpack(t.Context(), root, &stream, &Limits{Bytes: 1 << 30, Entries: 1000, Sparse: 1 << 40, Kept: 1 << 20}); err != nil {
			rt.Fatal(err)
		}
		keep := treetest.Whole()
		if d := cmp.Diff(treetest.Read(t, from, keep), treetest.Read(t, to, keep)); d != "" || u.unlisted > 0 {
			rt.Fatalf("%d lists left out; (-want +got):\n%s", u.unlisted, d)
		}
	})
}

// TestUnpackNarrows: a list that cannot be kept opens no file to anybody: the group's bits of a mode are the list's mask, and count
// with the list alone.
func TestUnpackNarrows(t *testing.T) {
	testkit.NeedsRoot(t)
	for list, want := range map[string]struct {
		mode     uint32
		unlisted int
		kept     bool
	}{
		"user::rw-,group::r--,mask::rw-,other::r--":                     {0o664, 0, true}, // the mode that the kernel shows
		"user::rw-\nuser:1000:rw-\ngroup::r--\nmask::rw-\nother::r--\n": {0o664, 0, true},
		"user::rw-,user:ann:rw-:1000,group::r--,mask::rw-,other::r--":   {0o664, 0, true}, // star's
		"u::rw-,g::r--,g:5:rw-,m::rw-,o::r--":                           {0o664, 0, true},
		"other::r--,mask::rw-,group::r--,user:root:rw-,user::rw-":       {0o664, 0, true},
		"user::rw-,group::r--,other::r--":                               {0o644, 0, false}, // is the mode
		"user::rw-,user:ann:rw-,group::r--,mask::rw-,other::r--":        {0o644, 1, false},
		"user::rw-,group::r--,group:lp:---,mask::rw-,other::r--":        {0o640, 1, false}, // members of lp have no access
		"user::rw-,user:eve:---,group::rw-,mask::rw-,other::r--":        {0o600, 1, false}, // nor eve, in the group or not
		"user::rw-,user:ann:rw-,group::rwx,mask::r--,other::---":        {0o640, 1, false},
		"no list": {0o600, 1, false},
		"user::rw-,user:99999999999:rw-,group::r--,mask::rw-,other::r--": {0o644, 1, false},
	} {
		dir := t.TempDir()
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		var layer bytes.Buffer
		w := tar.NewWriter(&layer)
		for _, h := range []tar.Header{
			{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755, PAXRecords: map[string]string{"SCHILY.acl.default": "user::rwx,user:7:rwx,group::r-x,mask::rwx,other::r-x"}},
			{Name: "d/f", Typeflag: tar.TypeReg, Mode: 0o664, PAXRecords: map[string]string{"SCHILY.acl.access": list}},
			{Name: "d/plain", Typeflag: tar.TypeReg, Mode: 0o664},
		} {
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
		}
		w.Close()
		u := &unpacker{}
		err = u.unpack(t.Context(), root, &layer, &Limits{Bytes: 1 << 20, Entries: 100, Kept: 1 << 20})
		root.Close()
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(filepath.Join(dir, "d/f"), &st)
		}
		kept := attr(filepath.Join(dir, "d/f"), treetar.AccessList) != ""
		if err != nil || st.Mode&0o7777 != want.mode || kept != want.kept || u.unlisted != want.unlisted {
			t.Errorf("%q: mode %o, list kept %t, %d left out, %v; want %+v", list, st.Mode&0o7777, kept, u.unlisted, err, want)
		}
		if attr(filepath.Join(dir, "d"), treetar.DefaultList) == "" || attr(filepath.Join(dir, "d/plain"), treetar.AccessList) != "" {
			t.Errorf("%q: the folder has no list for what is made in it, or what was unpacked got it", list)
		}
	}
	_, err := unpackTo(t, layerOf(t, &tar.Header{Name: "f", Typeflag: tar.TypeReg, PAXRecords: map[string]string{"SCHILY.acl.access": "user::rw-,user:70000:rw-,group::r--,mask::rw-,other::r--"}}))
	if refuse.KindOf(err) != refuse.Invalid {
		t.Errorf("an id beyond those of a node: %v", err)
	}
}

func layerOf(t *testing.T, h *tar.Header) []byte {
	t.Helper()
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	if err := w.WriteHeader(h); err != nil {
		t.Fatal(err)
	}
	w.Close()
	return layer.Bytes()
}

// TestLargeAttribute: an attribute for which the file system has no room is not a full disk.
func TestLargeAttribute(t *testing.T) {
	s := newStore(t)
	layer := imagetest.Layer(t, E{Name: "f", Xattrs: map[string]string{"user.a": strings.Repeat("v", 5000)}}) // ext4 takes 4 KiB, XFS 64
	_, err := s.Import(t.Context(), imagetest.OCIArchive(t, imagetest.Image{Layers: [][]byte{layer}}), As{Name: "x"}, nil)
	if err != nil && (refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "attribute user.a of 5000 bytes") || strings.Contains(err.Error(), "is full")) {
		t.Error(err)
	}
	for _, c := range []struct {
		err  error
		full bool
		says string
	}{
		{unix.ENOSPC, false, "no room for it beside the file's others"},
		{unix.ENOSPC, true, "is full"},
		{unix.EDQUOT, false, "a quota of the file system"},
		{unix.EDQUOT, true, "a quota of the file system"},
	} {
		err := space.Full(t.TempDir(), attrErr(c.err, "user.a", 5000, c.full))
		if refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "is full") != (c.says == "is full") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
