// Package fault names the points of the program at which tests kill or stop it: a program that survives a kill at each of
// them loses nothing at any other.
package fault
