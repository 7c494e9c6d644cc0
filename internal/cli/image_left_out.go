package cli

import (
	"fmt"
	"strings"

	"berth/internal/image"
	"berth/internal/sys/text"
)

// leftOut says what of an image was not imported. An archive chose some of the words.
func (a *app) leftOut(rec image.Record) {
	out := text.NewVisible(a.Err)
	if len(rec.Skipped) > 0 {
		fmt.Fprintf(out, "left out, every node has its own: %s\n", strings.Join(rec.Skipped, " "))
	}
	if len(rec.Beside) > 0 {
		fmt.Fprintf(out, "passed over, no images: %s\n", strings.Join(rec.Beside, ", "))
	}
	if rec.NoACLs > 0 {
		fmt.Fprintf(out, "left out, without more rights for anybody: %s that name users without numbers (tar --acls --xattrs --xattrs-include='*' writes numbers) or are of FIFOs\n",
			text.Count(rec.NoACLs, "access control list"))
	}
}
