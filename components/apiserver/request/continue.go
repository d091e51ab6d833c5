package request

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
)

// continueToken is the JSON content of a continue token. It is the same as upstream's, so that
// another API server can continue the list.
type continueToken struct {
	APIVersion      string `json:"v"`
	ResourceVersion int64  `json:"rv"`
	StartKey        string `json:"start"`
}

const continueVersion = "meta.k8s.io/v1"

// EncodeContinue returns the continue token for the page that starts at key, at a revision; -1 means the latest. The
// token contains key without prefix, the key prefix that the request selects. It returns an error if key does not
// start with it.
func EncodeContinue(key, prefix string, revision int64) (string, error) {
	start, ok := strings.CutPrefix(key, prefix)
	if !ok {
		return "", fmt.Errorf("unable to encode next field: the key and key prefix do not match")
	}
	data, err := json.Marshal(continueToken{continueVersion, revision, start})
	if err != nil {
		return "", fmt.Errorf("encoding a continue token: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(data), nil
}

// DecodeContinue returns the key and revision in a token of EncodeContinue. prefix is the key
// prefix that the request selects. It returns an error if the token is malformed or its key would
// be outside of the prefix.
func DecodeContinue(token, prefix string) (key string, revision int64, err error) {
	data, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return "", 0, fmt.Errorf("continue key is not valid: %w", err)
	}
	var t continueToken
	if err := json.Unmarshal(data, &t); err != nil {
		return "", 0, fmt.Errorf("continue key is not valid: %w", err)
	}
	switch {
	case t.APIVersion != continueVersion:
		return "", 0, fmt.Errorf("continue key is not valid: server does not recognize this encoded version %v", t.APIVersion)
	case t.ResourceVersion == 0:
		return "", 0, errors.New("continue key is not valid: incorrect encoded start resourceVersion (version meta.k8s.io/v1)")
	case t.StartKey == "":
		return "", 0, errors.New("continue key is not valid: encoded start key empty (version meta.k8s.io/v1)")
	}
	// A start key outside of prefix would give access to objects for which the request is not
	// authorized.
	start := t.StartKey
	if !strings.HasPrefix(start, "/") {
		start = "/" + start
	}
	if cleaned := path.Clean(start); cleaned != start {
		return "", 0, fmt.Errorf("continue key is not valid: %s", t.StartKey)
	}
	return prefix + start[1:], t.ResourceVersion, nil
}
