package treetar

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// extent is a part of a file that holds data.
type extent struct{ at, size int64 }

// mostExtents bounds the map of a sparse file: readers bound its text at 1 MiB (archive/tar since Go 1.25). Of a file with more
// extents the smallest holes are written as zeros.
const mostExtents = 20_000

// extents returns where the data of a file lies, in ascending order.
func extents(f *os.File, size int64) ([]extent, error) {
	for gap := int64(1); ; gap *= 16 {
		parts, err := extentsBeyond(f, size, gap)
		if err != nil || len(parts) <= mostExtents {
			return parts, err
		}
	}
}

// extentsBeyond returns the extents that holes of at least gap bytes part.
func extentsBeyond(f *os.File, size, gap int64) ([]extent, error) {
	var all []extent
	for at := int64(0); at < size; {
		data, err := f.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || err == nil && data >= size {
			break
		}
		if err != nil {
			return nil, err
		}
		hole, err := f.Seek(data, unix.SEEK_HOLE)
		if errors.Is(err, unix.ENXIO) { // it became shorter
			break
		}
		if err != nil {
			return nil, err
		}
		hole = min(hole, size)
		if n := len(all); n > 0 && data-(all[n-1].at+all[n-1].size) < gap {
			all[n-1].size = hole - all[n-1].at
		} else {
			all = append(all, extent{data, hole - data})
		}
		at = hole
	}
	return all, nil
}

// sparse writes a file with holes in GNU's format 1.0 (tar manual, "Storing Sparse Files"): archive/tar reads it, but does not
// write it.
func (p *packer) sparse(f *os.File, h *tar.Header, size int64, parts []extent) error {
	if n := len(parts); n == 0 || parts[n-1].at+parts[n-1].size < size {
		parts = append(parts, extent{size, 0})
	}
	text := bytes.NewBufferString(strconv.Itoa(len(parts)) + "\n")
	var data int64
	for _, e := range parts {
		fmt.Fprintf(text, "%d\n%d\n", e.at, e.size)
		data += e.size
	}
	text.Write(make([]byte, padding(int64(text.Len()))))
	stored := int64(text.Len()) + data

	records := maps.Clone(h.PAXRecords)
	maps.Copy(records, map[string]string{
		"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": h.Name, "GNU.sparse.realsize": strconv.FormatInt(size, 10),
		"size": strconv.FormatInt(stored, 10), "uid": strconv.Itoa(h.Uid), "gid": strconv.Itoa(h.Gid),
		"mtime": paxTime(h.ModTime.Unix(), h.ModTime.Nanosecond()),
	})
	var list strings.Builder
	for _, k := range slices.Sorted(maps.Keys(records)) {
		list.WriteString(paxRecord(k, records[k]))
	}
	if err := p.t.Flush(); err != nil {
		return fmt.Errorf("write the stream: %w", err)
	}
	extended, err := ustar(&tar.Header{Name: "PaxHeaders.0/sparse", Size: int64(list.Len()), Mode: 0o644}, tar.TypeXHeader)
	if err != nil {
		return err
	}
	main, err := ustar(&tar.Header{Name: "GNUSparseFile.0/" + asciiBase(h.Name), Size: stored, Mode: h.Mode}, tar.TypeReg)
	if err != nil {
		return err
	}
	head := slices.Concat(extended, []byte(list.String()), make([]byte, padding(int64(list.Len()))), main, text.Bytes())
	if _, err := p.w.Write(head); err != nil {
		return fmt.Errorf("write the stream: %w", err)
	}
	p.tally.Entries++
	for _, e := range parts {
		if p.from.Data != nil {
			err = p.from.Data(h.Name, e.at, e.size)
		} else {
			err = p.data(io.NewSectionReader(f, e.at, e.size), p.w, h.Name, e.size)
		}
		if err != nil {
			return err
		}
	}
	return p.pad(stored)
}

// ustar returns the 512 bytes of a header of a given type. A size that does not fit stands in the extended header alone.
func ustar(h *tar.Header, kind byte) ([]byte, error) {
	const most = 1<<33 - 1 // 11 octal digits
	h.Size, h.Typeflag, h.Format = min(h.Size, most), tar.TypeReg, tar.FormatUSTAR
	var b bytes.Buffer
	if err := tar.NewWriter(&b).WriteHeader(h); err != nil {
		return nil, fmt.Errorf("write the entry %q: %w", h.Name, err)
	}
	block := b.Bytes()[:512]
	block[156] = kind
	copy(block[148:156], "        ") // the checksum counts as blanks
	sum := 0
	for _, c := range block {
		sum += int(c)
	}
	copy(block[148:156], fmt.Sprintf("%06o\x00 ", sum))
	return block, nil
}

// paxRecord returns "LENGTH KEY=VALUE\n", where LENGTH counts all of it.
func paxRecord(key, value string) string {
	rest := " " + key + "=" + value + "\n"
	n := len(rest) + len(strconv.Itoa(len(rest)))
	if len(strconv.Itoa(n)) > len(strconv.Itoa(len(rest))) {
		n++
	}
	return strconv.Itoa(n) + rest
}

// paxTime writes a time as PAX does: seconds with a fraction. Before 1970 the fraction counts down.
func paxTime(sec int64, nsec int) string {
	sign := ""
	if sec < 0 {
		sign, sec, nsec = "-", -sec, -nsec
		if nsec < 0 {
			sec, nsec = sec-1, nsec+1e9
		}
	}
	return fmt.Sprintf("%s%d.%09d", sign, sec, nsec)
}

func asciiBase(name string) string {
	clean := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '_'
		}
		return r
	}, path.Base(name))
	return clean[:min(len(clean), 60)]
}

func padding(n int64) int64 { return -n & 511 }

// IsSparse reports whether an entry is a sparse file, in any of GNU tar's formats.
func IsSparse(h *tar.Header) bool {
	if h.Typeflag == tar.TypeGNUSparse {
		return true
	}
	for record := range h.PAXRecords {
		if strings.HasPrefix(record, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// Counter counts the bytes read from a stream.
type Counter struct {
	R io.Reader
	N int64
}

func (c *Counter) Read(p []byte) (int, error) {
	n, err := c.R.Read(p)
	c.N += int64(n)
	return n, err
}

// holeBlock is the unit in which zeros become holes: the block size of most file systems.
const holeBlock = 4096

// Holes writes a sparse entry of size bytes into f, an empty file. archive/tar does not expose the map of holes; it reads them
// as zeros (at 100 GB/s). A read from r that consumed nothing from the stream in lay in a hole; in other reads each block of
// zeros becomes one. take is called before a block is written.
func Holes(f *os.File, r io.Reader, in *Counter, size int64, buf []byte, take func(n int64) error) error {
	none := make([]byte, holeBlock)
	for at := int64(0); at < size; {
		before := in.N
		n, err := io.ReadFull(r, buf[:min(int64(len(buf)), size-at)])
		if err != nil {
			return err
		}
		for i := 0; in.N != before && i < n; i += holeBlock {
			block := buf[i:min(i+holeBlock, n)]
			if bytes.Equal(block, none[:len(block)]) {
				continue
			}
			if err := take(int64(len(block))); err != nil {
				return err
			}
			if _, err := f.WriteAt(block, at+int64(i)); err != nil {
				return err
			}
		}
		at += int64(n)
	}
	return f.Truncate(size)
}
