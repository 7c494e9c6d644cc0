package client

import (
	"io"
	"sync"

	"berth/internal/site/api"
)

// mostParts is how many parts of output are kept at once. Parts of one stream that come one after the other are one, of at most a chunk.
const mostParts = 4 * api.Window / api.Chunk

// part is a piece of one stream.
type part struct {
	stream byte
	text   []byte
}

// output has the pieces of a command's output that are not written yet, in the order in which they came.
type output struct {
	mu    sync.Mutex
	news  sync.Cond // anything below has changed
	parts []part
	ended bool // no more comes
	dead  bool // the output is not taken any more
}

func newOutput() *output {
	o := &output{}
	o.news.L = &o.mu
	return o
}

// put keeps a piece. It waits only if an agent sends more than the window: an older agent, or one whose command writes to
// both streams by turns.
func (o *output) put(stream byte, text []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if last := len(o.parts) - 1; last >= 0 && o.parts[last].stream == stream && len(o.parts[last].text)+len(text) <= api.Chunk {
		o.parts[last].text = append(o.parts[last].text, text...)
		return
	}
	for len(o.parts) >= mostParts && !o.dead {
		o.news.Wait()
	}
	o.parts = append(o.parts, part{stream, text})
	o.news.Broadcast()
}

// end says that no more comes.
func (o *output) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	o.news.Broadcast()
}

// write writes the pieces until the end, and tells the agent how many bytes it took: before it waits for more, and often enough
// that the agent can go on meanwhile.
func (o *output) write(s Streams, tell func(n int)) error {
	to := map[byte]io.Writer{api.Stdout: s.Out, api.Stderr: s.Err}
	untold := 0
	for {
		o.mu.Lock()
		if len(o.parts) == 0 && untold > 0 || untold >= api.Window/4 {
			o.mu.Unlock()
			tell(untold)
			untold = 0
			continue
		}
		for len(o.parts) == 0 && !o.ended {
			o.news.Wait()
		}
		if len(o.parts) == 0 {
			o.mu.Unlock()
			return nil
		}
		p := o.parts[0]
		o.parts = o.parts[1:]
		o.news.Broadcast()
		o.mu.Unlock()
		untold += len(p.text)
		if to[p.stream] == nil {
			continue // of a newer agent
		}
		if _, err := to[p.stream].Write(p.text); err != nil {
			o.mu.Lock()
			o.dead = true
			o.news.Broadcast()
			o.mu.Unlock()
			return err
		}
	}
}
