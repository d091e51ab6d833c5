package negotiate

import (
	"net/http/httptest"
	"testing"
)

func TestResponse(t *testing.T) {
	stored := Endpoint{Protobuf: true, Metadata: true}
	const table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
	for _, tc := range []struct {
		header   string
		endpoint Endpoint
		want     Format
		fails    bool
	}{
		{"", stored, Format{Version: "v1"}, false},
		{"*/*", stored, Format{Version: "v1"}, false},
		{"application/yaml", stored, Format{Media: YAML, Version: "v1"}, false},
		{table, stored, Format{As: Table, Version: "v1"}, false},
		{table, Endpoint{Protobuf: true}, Format{Version: "v1"}, false},
		{"application/json;as=Table;v=v1;g=meta.k8s.io", Endpoint{}, Format{}, true},
		{"application/vnd.kubernetes.protobuf,application/json", stored, Format{Media: Protobuf, Version: "v1"}, false},
		{"application/vnd.kubernetes.protobuf,application/json", Endpoint{}, Format{Version: "v1"}, false},
		{"application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", stored, Format{Media: Protobuf, As: MetadataList, Version: "v1"}, false},
		{"application/cbor", stored, Format{}, true},
		{"text/html", stored, Format{}, true},
		{"application/json;stream=watch", Endpoint{Watch: true}, Format{Version: "v1"}, false},
		{"application/yaml", Endpoint{Watch: true}, Format{}, true},
		{"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json", Endpoint{Aggregated: true}, Format{As: Aggregated, Version: "v2"}, false},
	} {
		var n Negotiator
		req := httptest.NewRequest("GET", "/", nil)
		req.Header.Set("Accept", tc.header)
		for range 2 { // the second time from the cache
			got, err := n.Response(req, tc.endpoint)
			if (err != nil) != tc.fails || got != tc.want {
				t.Errorf("%q: %+v, %v", tc.header, got, err)
			}
		}
	}
}
