package images

import (
	"errors"
	"fmt"
	"strings"
)

// maxName is how long registry and repository may be together.
const maxName = 255

// Normalize returns the full form of a reference as container runtimes and
// users know it: registry and repository completed, the tag "latest" added
// when there is neither tag nor digest, the tag dropped when there are both.
//
// The grammar is that of github.com/distribution/reference, written without
// regular expressions: compiling those would cost every container's start.
func Normalize(ref string) (string, error) {
	name, tag, digest, err := parse(ref)
	if err != nil {
		return "", fmt.Errorf("failed to parse image reference %q: invalid reference format: %w", ref, err)
	}
	switch {
	case digest != "":
		return name + "@" + digest, nil
	case tag == "":
		tag = "latest"
	}
	return name + ":" + tag, nil
}

func parse(ref string) (name, tag, digest string, err error) {
	if len(ref) == 64 && isHex(ref) {
		return "", "", "", errors.New("it looks like an image's ID")
	}
	name, digest, hasDigest := strings.Cut(ref, "@")
	if hasDigest && !isReferenceDigest(digest) {
		return "", "", "", errors.New("bad digest")
	}
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name, tag = name[:i], name[i+1:]
		if !isTag(tag) {
			return "", "", "", errors.New("bad tag")
		}
	}
	domain, path, found := strings.Cut(name, "/")
	if !found || !strings.ContainsAny(domain, ".:") && domain != "localhost" && strings.ToLower(domain) == domain {
		domain, path = "docker.io", name
	}
	if domain == "index.docker.io" {
		domain = "docker.io"
	}
	if domain == "docker.io" && !strings.Contains(path, "/") {
		path = "library/" + path
	}
	if !isDomain(domain) {
		return "", "", "", errors.New("bad registry")
	}
	for part := range strings.SplitSeq(path, "/") {
		if !isPathPart(part) {
			if strings.ToLower(part) != part {
				return "", "", "", errors.New("repository name must be lowercase")
			}
			return "", "", "", errors.New("bad repository name")
		}
	}
	if len(path) > maxName {
		return "", "", "", fmt.Errorf("repository name must not be more than %d characters", maxName)
	}
	return domain + "/" + path, tag, digest, nil
}

func isHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// isSHA256 tells whether s is "sha256:" and 64 hexadecimal digits.
func isSHA256(s string) bool {
	rest, ok := strings.CutPrefix(s, "sha256:")
	return ok && len(rest) == 64 && isHex(rest)
}

func isReferenceDigest(s string) bool {
	if rest, ok := strings.CutPrefix(s, "sha512:"); ok {
		return len(rest) == 128 && isHex(rest)
	}
	return isSHA256(s)
}

func isLower(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }
func isAlnum(c byte) bool { return isLower(c) || c >= 'A' && c <= 'Z' }

func isTag(s string) bool {
	if s == "" || len(s) > 128 || s[0] == '.' || s[0] == '-' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !isAlnum(c) && c != '_' && c != '.' && c != '-' {
			return false
		}
	}
	return true
}

// isPathPart: letters and digits, with one dot, one or two underscores or any
// number of dashes between them.
func isPathPart(s string) bool {
	if s == "" || !isLower(s[0]) || !isLower(s[len(s)-1]) {
		return false
	}
	for i := 0; i < len(s); {
		if isLower(s[i]) {
			i++
			continue
		}
		n := 1
		for s[i+n] == s[i] { // the last one is a letter or digit
			n++
		}
		if c := s[i]; c != '-' && (c != '_' || n > 2) && (c != '.' || n > 1) || !isLower(s[i+n]) {
			return false
		}
		i += n
	}
	return true
}

// isDomain: a host name or an IPv6 address in brackets, and perhaps a port.
func isDomain(s string) bool {
	host := s
	if rest, ok := strings.CutPrefix(s, "["); ok {
		address, port, ok := strings.Cut(rest, "]")
		if !ok || address == "" || strings.Trim(address, "0123456789abcdefABCDEF:") != "" {
			return false
		}
		return port == "" || port[0] == ':' && isPort(port[1:])
	}
	if name, port, ok := strings.Cut(s, ":"); ok {
		if !isPort(port) {
			return false
		}
		host = name
	}
	for label := range strings.SplitSeq(host, ".") {
		if label == "" || !isAlnum(label[0]) || !isAlnum(label[len(label)-1]) {
			return false
		}
		for i := range len(label) {
			if !isAlnum(label[i]) && label[i] != '-' {
				return false
			}
		}
	}
	return true
}

func isPort(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// repository returns the part of a normalised reference before tag or digest.
func repository(normal string) string {
	if name, _, found := strings.Cut(normal, "@"); found {
		return name
	}
	if i := strings.LastIndexByte(normal, ':'); i > strings.LastIndexByte(normal, '/') {
		return normal[:i]
	}
	return normal
}

func isDigest(normal string) bool { return strings.Contains(normal, "@") }
