// Package version says which Berth this is.
package version

// Berth is the version of this program. The build sets it.
var Berth = "devel"
