package cli

import (
	"bytes"
	"testing"

	"berth/internal/image"
)

// TestLeftOutIsVisible: what an archive calls a thing beside its image is no command to the terminal.
func TestLeftOutIsVisible(t *testing.T) {
	var out bytes.Buffer
	(&app{Streams: Streams{Err: &out}}).leftOut(image.Record{Beside: []string{"a/b (\x1b]0;x\a)"}})
	if got, want := out.String(), `passed over, no images: a/b (\u001b]0;x\u0007)`+"\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
