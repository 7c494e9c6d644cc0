package vnode

import (
	"fmt"
	"strconv"
	"strings"
)

// Image names a read-only root.
type Image struct {
	Kind ImageKind
	Ref  string // REF, DIR or PATH; empty for host
}

// ImageKind is the part of an image's name before the colon.
type ImageKind string

// The kinds of image.
const (
	HostImage      ImageKind = "host"
	OCIImage       ImageKind = "oci"        // a name in Berth's own store (berth image import), later also a registry
	OCILayoutImage ImageKind = "oci-layout" // a folder in OCI image layout
	DirImage       ImageKind = "dir"        // a folder that is the root
	FileImage      ImageKind = "file"       // squashfs, erofs or tar
)

// ParseImage reads an image's name.
func ParseImage(s string) (Image, error) {
	kind, ref, colon := strings.Cut(s, ":")
	switch k := ImageKind(kind); k {
	case HostImage:
		if colon {
			return Image{}, fmt.Errorf("image host takes nothing after it")
		}
		return Image{Kind: k}, nil
	case OCIImage, OCILayoutImage, DirImage, FileImage:
		if ref == "" {
			return Image{}, fmt.Errorf("image %s: needs what follows the colon", kind)
		}
		return Image{Kind: k, Ref: ref}, nil
	}
	return Image{}, &ImageError{Text: s}
}

// ImageError is the error for a text that names no kind of image. A caller that knows the stored images can add a hint.
type ImageError struct{ Text string }

func (e *ImageError) Error() string {
	return strconv.Quote(e.Text) + " is not an image: host, oci:NAME, oci-layout:DIR, dir:PATH or file:PATH"
}

// String writes the value exactly, in the form that the parser reads.
func (i Image) String() string {
	if i.Kind == HostImage || i.Kind == "" {
		return string(i.Kind)
	}
	return string(i.Kind) + ":" + i.Ref
}

// MarshalText returns the text of String.
func (i Image) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// UnmarshalText reads the text with ParseImage.
func (i *Image) UnmarshalText(t []byte) (err error) { *i, err = ParseImage(string(t)); return }
