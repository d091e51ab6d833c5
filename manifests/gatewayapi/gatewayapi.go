// Package gatewayapi contains the CustomResourceDefinitions of the Gateway API.
package gatewayapi

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

//go:generate go run ../../scripts/gateway-crds definitions.zst

// compressed contains the definitions of the standard channel: JSON documents, compressed with zstd.
//
//go:embed definitions.zst
var compressed []byte

// Definitions returns the CustomResourceDefinitions of the standard channel.
func Definitions() ([]*unstructured.Unstructured, error) {
	reader, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, fmt.Errorf("reading the definitions of the Gateway API: %w", err)
	}
	defer reader.Close()
	text, err := reader.DecodeAll(compressed, nil)
	if err != nil {
		return nil, fmt.Errorf("reading the definitions of the Gateway API: %w", err)
	}
	var out []*unstructured.Unstructured
	for decoder := json.NewDecoder(bytes.NewReader(text)); ; {
		obj := &unstructured.Unstructured{}
		err := decoder.Decode(&obj.Object)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("parsing the definitions of the Gateway API: %w", err)
		}
		out = append(out, obj)
	}
}
