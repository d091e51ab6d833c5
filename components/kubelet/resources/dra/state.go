package dra

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"hyperkube/internal/host/atomicfile"
)

// state is the content of the state file, which survives restarts of the kubelet. Whether a claim is prepared
// is not saved: the drivers are called again because they may also have restarted.
type state struct {
	Version string   `json:"version"`
	Claims  []*Claim `json:"claims"`
}

// stateVersion is the only supported version of the state file.
const stateVersion = "v1"

// save writes the prepared claims and the pods that use them to the state file, from which load reads them after a
// restart. The caller must hold mu.
func (m *Manager) save() error {
	s := state{Version: stateVersion, Claims: []*Claim{}}
	for _, uid := range slices.Sorted(maps.Keys(m.claims)) {
		s.Claims = append(s.Claims, m.claims[uid])
	}
	data, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encoding DRA manager state: %w", err)
	}
	if err := atomicfile.Write(atomicfile.File{Path: m.path, Data: data, Mode: 0o600}); err != nil {
		return fmt.Errorf("writing DRA manager state: %w", err)
	}
	return nil
}

// load returns the claims in the state file. A file that does not exist means no claims. An unreadable file
// is an error.
func load(path string) (map[types.UID]*Claim, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return map[types.UID]*Claim{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading DRA manager state: %w", err)
	}
	claims, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("reading DRA manager state: %s: %w (remove the file once no pod with resource claims runs)", path, err)
	}
	return claims, nil
}

// parse returns the claims in the content of a state file, by UID. Another version and a claim without a UID
// are an error.
func parse(data []byte) (map[types.UID]*Claim, error) {
	var s state
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, err
	}
	if s.Version != stateVersion {
		return nil, fmt.Errorf("unsupported version %q", s.Version)
	}
	out := map[types.UID]*Claim{}
	for _, c := range s.Claims {
		if c == nil || c.UID == "" {
			return nil, errors.New("a claim has no UID")
		}
		if c.Devices == nil {
			c.Devices = map[string][]Device{}
		}
		out[c.UID] = c
	}
	return out, nil
}
