// Package pull asks the program berth-pull for an image of a registry, and removes the blobs that earlier pulls left.
//
// The puller is a program of its own: its libraries (HTTP, TLS, go-containerregistry) add 4 MB to a program, and half a
// millisecond to each of its starts. The two talk through pipes, one JSON object a line. berth-pull ends when its
// standard input does, so it never outlives the command that started it.
package pull

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"berth/internal/sys/fork"
	"berth/internal/sys/refuse"
	"berth/internal/sys/sibling"
)

// Program is the name of the puller.
const Program = "berth-pull"

// Request is the first line that the puller reads.
type Request struct {
	Ref      string `json:"ref"`                // as Name returns it
	Platform string `json:"platform,omitempty"` // os/arch[/variant]; "": this machine's
	Folder   string `json:"folder"`             // takes the blobs: blobs/sha256/HEX below it
	Layers   string `json:"layers"`             // the store's unpacked layers, by digest: those are not fetched
	Insecure bool   `json:"insecure,omitempty"` // a connection without TLS, or with an unknown certificate, is accepted
}

// Answer is a line that the puller writes. One of its fields is set.
type Answer struct {
	Progress *Progress `json:"progress,omitempty"`
	Say      string    `json:"say,omitempty"` // for the user: why it waits
	Got      *Got      `json:"got,omitempty"` // the end: all blobs are there and verified
	Failed   *Failed   `json:"failed,omitempty"`
}

// Progress is how many bytes of the blobs are there.
type Progress struct {
	Done  int64 `json:"done"`
	Total int64 `json:"total"`
}

// Got is what a pull brought. The puller keeps the locks of the blobs until its standard input ends, and removes the blobs
// if it reads a line before.
type Got struct {
	Manifest string `json:"manifest"` // digest of the image's manifest
	From     string `json:"from"`     // the repository, with the digest that the reference stood for
	Fetched  int64  `json:"fetched"`  // bytes that the registry sent
}

// Failed is a refusal.
type Failed struct {
	Kind   refuse.Kind `json:"kind"`
	What   string      `json:"what"`
	Remedy string      `json:"remedy,omitempty"`
}

// See has functions that are called with the progress of a pull. Both functions may be nil.
type See struct {
	Progress func(done, total int64)
	Say      func(string)
}

// Pulled is an image whose blobs lie in the request's folder, locked.
type Pulled struct {
	Got
	cmd *exec.Cmd
	in  io.WriteCloser
}

// Start runs the puller until the image's blobs are there. The caller calls End. When ctx ends, the puller is told to stop:
// what it has fetched stays for the next pull.
func Start(ctx context.Context, r Request, see See) (*Pulled, error) {
	path, err := sibling.Find(Program, "images are pulled",
		"make install puts both there; without it, berth image import ARCHIVE NAME takes what podman save wrote")
	if err != nil {
		return nil, err
	}
	line, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path)
	cmd.Stderr = os.Stderr
	p := &Pulled{cmd: cmd}
	if p.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := fork.Start(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	stop := context.AfterFunc(ctx, func() { p.in.Close() })
	defer stop()
	_, err = p.in.Write(append(line, '\n'))
	if err == nil {
		err = p.listen(out, see)
	}
	if err == nil {
		return p, nil
	}
	p.in.Close()
	if waitErr := fork.Wait(cmd); errors.Is(err, io.EOF) {
		err = fmt.Errorf("%s ended without an answer: %w; what it fetched is kept, and the next pull goes on from there", Program, cmp.Or(waitErr, err))
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("pull %s: %w", r.Ref, ctx.Err())
	}
	return nil, err
}

// listen reads the puller's answers up to the last one.
func (p *Pulled) listen(out io.Reader, see See) error {
	lines := json.NewDecoder(bufio.NewReader(out))
	for {
		var a Answer
		if err := lines.Decode(&a); err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) {
				return io.EOF
			}
			return err
		}
		switch {
		case a.Failed != nil:
			return &refuse.Error{Kind: a.Failed.Kind, What: a.Failed.What, Remedy: a.Failed.Remedy}
		case a.Got != nil:
			p.Got = *a.Got
			return nil
		case a.Progress != nil && see.Progress != nil:
			see.Progress(a.Progress.Done, a.Progress.Total)
		case a.Say != "" && see.Say != nil:
			see.Say(a.Say)
		}
	}
}

// End lets go of the blobs. used says that they were unpacked and can be removed.
func (p *Pulled) End(used bool) error {
	if used {
		if _, err := p.in.Write([]byte("used\n")); err != nil {
			return fmt.Errorf("end %s: %w", Program, err)
		}
	}
	p.in.Close()
	if err := fork.Wait(p.cmd); err != nil {
		return fmt.Errorf("%s: %w", Program, err)
	}
	return nil
}
