package main

import (
	"path/filepath"
	"slices"
	"strings"
)

// administration is where a system keeps the programs that a node needs
// (iptables, mount, modprobe) and where Debian's own search path ends.
var administration = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// searchPath is path with the folders after it that it lacks. Root's search path
// need not have them: cron gives one without those of the administration, su keeps
// the user's, and a program may be started without any.
func searchPath(path string) string {
	dirs := slices.DeleteFunc(filepath.SplitList(path), func(dir string) bool { return dir == "" })
	for _, dir := range administration {
		if !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return strings.Join(dirs, string(filepath.ListSeparator))
}
