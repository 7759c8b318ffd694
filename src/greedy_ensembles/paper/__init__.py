"""The paper's studies, one file each; they only put the other rooms together."""
