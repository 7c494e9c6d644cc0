package cli

import (
	"fmt"
	"strings"

	"berth/internal/image"
	"berth/internal/sys/text"
)

// leftOut says what of an image was not imported.
func (a *app) leftOut(rec image.Record) {
	if len(rec.Skipped) > 0 {
		fmt.Fprintf(a.Err, "left out, every node has its own: %s\n", strings.Join(rec.Skipped, " "))
	}
	if rec.NoACLs > 0 {
		fmt.Fprintf(a.Err, "left out, without more rights for anybody: %s that name users without numbers (tar --acls --xattrs --xattrs-include='*' writes numbers) or are of FIFOs\n",
			text.Count(rec.NoACLs, "access control list"))
	}
}
