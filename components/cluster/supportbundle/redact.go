package supportbundle

import (
	"bytes"
	"encoding/base64"
	"path"
	"regexp"
	"slices"
	"strings"
)

// redacted replaces a credential.
const redacted = "REDACTED"

// minSecret is the length of the shortest Secret value that is removed wherever it occurs. Shorter ones would match parts
// of unrelated words.
const minSecret = 6

// redactor removes credentials from files: the values of the cluster's Secrets, and what looks like a credential.
type redactor struct {
	// known are the values to remove, longest first, because one may be part of another.
	known [][]byte
}

// newRedactor returns a redactor of the values and of their base64 encodings.
func newRedactor(values [][]byte) *redactor {
	r := &redactor{}
	for _, v := range values {
		if v = bytes.TrimSpace(v); len(v) >= minSecret {
			r.known = append(r.known, v, []byte(base64.StdEncoding.EncodeToString(v)))
		}
	}
	slices.SortFunc(r.known, func(a, b []byte) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return bytes.Compare(a, b)
	})
	r.known = slices.CompactFunc(r.known, bytes.Equal)
	return r
}

// file returns the content of a file without credentials. Compressed profiles are returned unchanged: they contain the
// names of functions.
func (r *redactor) file(name string, data []byte) []byte {
	if path.Ext(name) == ".pprof" {
		return data
	}
	for _, v := range r.known {
		data = bytes.ReplaceAll(data, v, []byte(redacted))
	}
	return redactText(data)
}

// sensitiveWord matches names of settings whose values are credentials.
const sensitiveWord = `(?:pass(?:word|wd|phrase)|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|certificate[_-]?key|client-key-data|credential|identitytoken)`

// patterns match credentials in text. The groups are kept.
var patterns = []*regexp.Regexp{
	// The end is missing in truncated files. Newlines may be escaped.
	regexp.MustCompile(`(?s)()-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)`),
	regexp.MustCompile(`(?i)(\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{6,}`),
	// JSON web tokens.
	regexp.MustCompile(`()\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*`),
	// Bootstrap tokens.
	regexp.MustCompile(`()\b[a-z0-9]{6}\.[a-z0-9]{16}\b`),
	// User and password in a URL.
	regexp.MustCompile(`(://)[^/\s:@"']+:[^/\s@"']+(@)`),
	// NAME=VALUE, NAME: VALUE and "NAME": "VALUE", also with escaped quotes and as a flag with a separate value.
	regexp.MustCompile(`(?i)(` + sensitiveWord + `[\w.-]*\\?["']?\s*[:=]\s*\\?["'])[^"'\\\n]+`),
	regexp.MustCompile(`(?i)(` + sensitiveWord + `[\w.-]*\\?["']?\s*[:=][ \t]*)[^\s"',;&}\\]+`),
	regexp.MustCompile(`(?i)(--[\w-]*` + sensitiveWord + `[\w-]*\s+)[^\s"'-][^\s"']*`),
	// The registry credentials of docker and of registries.yaml.
	regexp.MustCompile(`(["']?\bauth["']?[ \t]*:[ \t]*["']?)[A-Za-z0-9+/=]{6,}`),
}

// harmless matches what the patterns for names match, although the value is no credential: references to objects, paths,
// numbers and truth values.
var harmless = regexp.MustCompile(`(?i)(?:secret-?name(?:space)?|tokenexpirationseconds|automountserviceaccounttoken|token-?reviews?|service-?account-?token|[\w-]*-file|[\w-]*-path|tokenrequests?|audience)\\?["']?\s*[:=]\s*|[:=]\s*["']?(?:true|false|null|none|\d{1,7}|/[\w./-]+|\{|\[|REDACTED)["']?$`)

// encodedKey matches base64 in which a PEM block begins.
var encodedKey = regexp.MustCompile(`LS0tLS1CRUdJTi[A-Za-z0-9+/=]+`)

// redactText removes what looks like a credential from text.
func redactText(text []byte) []byte {
	text = encodedKey.ReplaceAllFunc(text, func(match []byte) []byte {
		decoded, _ := base64.StdEncoding.DecodeString(string(match)) // the decoded part is enough
		if len(decoded) == 0 || bytes.Contains(decoded, []byte("PRIVATE KEY")) {
			return []byte(redacted)
		}
		return match
	})
	for _, p := range patterns {
		text = p.ReplaceAllFunc(text, func(match []byte) []byte {
			if harmless.Match(match) {
				return match
			}
			kept := p.FindSubmatch(match)
			if kept == nil { // the match depends on what precedes it
				return []byte(redacted)
			}
			return slices.Concat(kept[1], []byte(redacted), bytes.Join(kept[2:], nil))
		})
	}
	return text
}

// sensitiveName matches the names of settings whose values are removed from objects.
var sensitiveName = regexp.MustCompile(`(?i)` + sensitiveWord)

// references are fields of objects whose names look sensitive and whose values are names of objects.
var references = []string{"secretName", "secretNamespace", "secret-name", "serviceAccountName"}

// isSensitive reports whether the value of the setting called name is a credential. It returns false for fields that
// contain the name of a Secret or service account.
func isSensitive(name string) bool {
	return sensitiveName.MatchString(name) && !slices.Contains(references, name)
}

// lastApplied is the annotation in which kubectl stores the previous manifest of an object, with all its values.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// redactObject removes credentials from the JSON value of an object, which it modifies, and returns it: the values of
// fields and of environment variables with sensitive names. data is the name of the field that contains v.
func redactObject(field string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		delete(v, "managedFields")
		delete(v, lastApplied)
		if name, ok := v["name"].(string); ok && isSensitive(name) {
			if _, ok := v["value"].(string); ok {
				v["value"] = redacted
			}
		}
		for key, value := range v {
			v[key] = redactObject(key, value)
		}
	case []any:
		for i := range v {
			v[i] = redactObject(field, v[i])
		}
	case string:
		if isSensitive(field) && v != "" && !isName(field, v) {
			return redacted
		}
		return string(redactText([]byte(v)))
	}
	return v
}

// isName reports whether the value of a sensitive field is only the name of an object or of a type, as in the data of
// ConfigMaps with names such as tokenFile.
func isName(field, value string) bool {
	lower := strings.ToLower(field)
	return strings.HasPrefix(value, "/") && (strings.HasSuffix(lower, "file") || strings.HasSuffix(lower, "path"))
}
