package strictyaml

// Merge returns base with the values of over, which take precedence. Mappings are merged, and null deletes a key of
// base. Lists are replaced, except if all items of both are mappings with the key "name": items of over then replace
// all items of base with the same name. The result shares nodes with both, and keeps their positions. Either may be
// nil.
func Merge(base, over *Node) *Node {
	if over == nil {
		return base
	}
	if base == nil || base.Kind != Mapping || over.Kind != Mapping {
		return over
	}
	out := *base
	out.Fields = nil
	for _, f := range base.Fields {
		i := over.index(f.Key)
		if i < 0 {
			out.Fields = append(out.Fields, f)
			continue
		}
		by := over.Fields[i]
		switch {
		case by.Value.Kind == Scalar && by.Value.Scalar == nil:
			continue
		case f.Value.Kind == List && by.Value.Kind == List:
			by.Value = mergeLists(f.Value, by.Value)
		default:
			by.Value = Merge(f.Value, by.Value)
		}
		out.Fields = append(out.Fields, by)
	}
	for _, f := range over.Fields {
		if base.index(f.Key) < 0 {
			out.Fields = append(out.Fields, f)
		}
	}
	return &out
}

// mergeLists merges lists whose items have a field name. The result contains the items of base whose name is not in
// over, and then those of over. If an item of either list has no name, it returns over.
func mergeLists(base, over *Node) *Node {
	names := map[string]bool{}
	for _, list := range []*Node{base, over} {
		for _, item := range list.Items {
			name := item.Text("name")
			if name == "" {
				return over
			}
			if list == over {
				names[name] = true
			}
		}
	}
	out := *over
	out.Items = nil
	for _, item := range base.Items {
		if !names[item.Text("name")] {
			out.Items = append(out.Items, item)
		}
	}
	out.Items = append(out.Items, over.Items...)
	return &out
}
