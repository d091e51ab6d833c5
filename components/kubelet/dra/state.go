package dra

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"hyperkube/internal/atomicfile"
)

// state is what is kept over restarts of the kubelet. That something was prepared
// is not: drivers are asked again, for they may have been started anew too.
type state struct {
	Version string   `json:"version"`
	Claims  []*Claim `json:"claims"`
}

const stateVersion = "v1"

// save writes the state down. The caller holds mu.
func (m *Manager) save() error {
	s := state{Version: stateVersion, Claims: []*Claim{}}
	for _, uid := range slices.Sorted(maps.Keys(m.claims)) {
		s.Claims = append(s.Claims, m.claims[uid])
	}
	data, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encoding the state of resource claims: %w", err)
	}
	if err := atomicfile.Write(atomicfile.File{Path: m.path, Data: data, Mode: 0o600}); err != nil {
		return fmt.Errorf("writing the state of resource claims: %w", err)
	}
	return nil
}

// load reads what save wrote; nothing is none.
func load(path string) (map[types.UID]*Claim, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return map[types.UID]*Claim{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the state of resource claims: %w", err)
	}
	claims, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("reading the state of resource claims: %s: %w (remove the file once no pod with resource claims runs)", path, err)
	}
	return claims, nil
}

func parse(data []byte) (map[types.UID]*Claim, error) {
	var s state
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, err
	}
	if s.Version != stateVersion {
		return nil, fmt.Errorf("version %q is not known", s.Version)
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
