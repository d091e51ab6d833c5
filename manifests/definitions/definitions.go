// Package definitions contains the CustomResourceDefinitions of add-ons.
package definitions

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

//go:generate go run ../../scripts/definitions sigs.k8s.io/gateway-api config/crd/standard/gateway.networking.k8s.io_*s.yaml gateway.zst
//go:generate go run ../../scripts/definitions sigs.k8s.io/network-policy-api config/crd/standard/policy.networking.k8s.io_clusternetworkpolicies.yaml clusternetworkpolicy.zst

// The files contain the definitions of the standard channels: JSON documents, compressed with zstd.
var (
	//go:embed gateway.zst
	gateway []byte
	//go:embed clusternetworkpolicy.zst
	clusterNetworkPolicy []byte
)

// Gateway returns the definitions of the Gateway API.
func Gateway() ([]*unstructured.Unstructured, error) { return read("the Gateway API", gateway) }

// ClusterNetworkPolicy returns the definition of ClusterNetworkPolicies.
func ClusterNetworkPolicy() ([]*unstructured.Unstructured, error) {
	return read("ClusterNetworkPolicies", clusterNetworkPolicy)
}

// read returns the definitions of what in compressed.
func read(what string, compressed []byte) ([]*unstructured.Unstructured, error) {
	reader, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, fmt.Errorf("reading the definitions of %s: %w", what, err)
	}
	defer reader.Close()
	text, err := reader.DecodeAll(compressed, nil)
	if err != nil {
		return nil, fmt.Errorf("reading the definitions of %s: %w", what, err)
	}
	var out []*unstructured.Unstructured
	for decoder := json.NewDecoder(bytes.NewReader(text)); ; {
		obj := &unstructured.Unstructured{}
		err := decoder.Decode(&obj.Object)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("parsing the definitions of %s: %w", what, err)
		}
		out = append(out, obj)
	}
}
