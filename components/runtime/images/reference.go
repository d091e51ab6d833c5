package images

import (
	"errors"
	"fmt"
	"strings"
)

// maxNameLength is the maximum length of a repository name without the registry.
const maxNameLength = 255

// Normalize returns the full form of an image reference: it adds the default registry and repository prefix, adds the
// tag "latest" if there is neither tag nor digest, and drops the tag if there are both. It returns an error if the
// reference is invalid or is an image ID.
//
// The grammar is that of github.com/distribution/reference, but without regular expressions, because compiling them
// would delay the start of every container.
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

// parse splits a reference into its full name with registry, its tag and its digest, which are empty if it has
// none. Without a registry the name is one of docker.io. It returns an error if the reference is not valid or
// looks like an image ID.
func parse(ref string) (name, tag, digest string, err error) {
	if len(ref) == 64 && isHex(ref) {
		return "", "", "", errors.New("it looks like an image ID")
	}
	name, digest, hasDigest := strings.Cut(ref, "@")
	if hasDigest && !isReferenceDigest(digest) {
		return "", "", "", errors.New("invalid digest")
	}
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name, tag = name[:i], name[i+1:]
		if !isTag(tag) {
			return "", "", "", errors.New("invalid tag")
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
		return "", "", "", errors.New("invalid registry")
	}
	for part := range strings.SplitSeq(path, "/") {
		if !isPathPart(part) {
			if strings.ToLower(part) != part {
				return "", "", "", errors.New("repository name must be lowercase")
			}
			return "", "", "", errors.New("invalid repository name")
		}
	}
	if len(path) > maxNameLength {
		return "", "", "", fmt.Errorf("repository name must not be more than %d characters", maxNameLength)
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

// isSHA256 reports whether s is "sha256:" followed by 64 hexadecimal digits.
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

// isPathPart reports whether s is a valid part of a repository name between slashes: lower case letters and digits,
// separated by one dot, one or two underscores, or any number of dashes.
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
		for s[i+n] == s[i] { // ends, because the last character is a letter or digit
			n++
		}
		if c := s[i]; c != '-' && (c != '_' || n > 2) && (c != '.' || n > 1) || !isLower(s[i+n]) {
			return false
		}
		i += n
	}
	return true
}

// isDomain reports whether s is a registry host: a host name or an IPv6 address in brackets, with an optional port.
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

// repository returns a normalized reference without its tag and digest.
func repository(normal string) string {
	if name, _, found := strings.Cut(normal, "@"); found {
		return name
	}
	if i := strings.LastIndexByte(normal, ':'); i > strings.LastIndexByte(normal, '/') {
		return normal[:i]
	}
	return normal
}

// isDigest reports whether a normalized reference has a digest instead of a tag.
func isDigest(normal string) bool { return strings.Contains(normal, "@") }
