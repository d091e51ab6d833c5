package main

import (
	"path/filepath"
	"slices"
	"strings"
)

// standardDirs are the standard directories of programs that a node needs (iptables, mount,
// modprobe), in the order of Debian's default PATH.
var standardDirs = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// searchPath appends missing standard directories to path. The PATH of root may lack them: cron
// sets one without the sbin directories, su keeps the user's, and a program may be started without
// PATH.
func searchPath(path string) string {
	dirs := slices.DeleteFunc(filepath.SplitList(path), func(dir string) bool { return dir == "" })
	for _, dir := range standardDirs {
		if !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return strings.Join(dirs, string(filepath.ListSeparator))
}
